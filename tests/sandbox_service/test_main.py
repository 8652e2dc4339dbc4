"""The command: its address line, its refusals, its end, its queue."""

import concurrent.futures
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys

import httpx
import pytest

import sandbox_service
from sandbox_service.server.instance import is_stale
from sandbox_service.zygote.process_tree import children, descendants

COMMAND = [sys.executable, "-m", "sandbox_service"]
REPOSITORY = os.path.dirname(os.path.dirname(sandbox_service.__file__))


def test_a_port_in_use_is_refused_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        command = [*COMMAND, "--port", str(port)]
        refused = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert len(refused.stderr.splitlines()) == 1
    assert f"127.0.0.1:{port}" in refused.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--lanes", "-1"], ["--queue", "-1"], ["--port", "x"], ["--nope"], ["--min-isolation", "most"]],
)
def test_wrong_arguments_are_refused(arguments):
    refused = subprocess.run(
        [*COMMAND, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 2
    assert arguments[0].strip("-").replace("-", "_") in refused.stderr.replace("-", "_")


def test_a_tier_that_is_not_to_be_had_is_refused_with_reasons(tmp_path):
    """Without control groups there is no cap on the memory of a run as a whole, so not the highest tier."""
    config = tmp_path / "config.toml"
    config.write_text("cgroups = false\nlanes = 1\n")
    command = [*COMMAND, "--port", "0", "--config", str(config), "--min-isolation", "strong"]
    refused = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 3
    assert refused.stdout == ""
    assert "--min-isolation asks for strong" in refused.stderr
    assert "cgroup: turned off" in refused.stderr
    assert "Traceback" not in refused.stderr


SLEEP = "import subprocess; subprocess.run(['sleep', '600'])"


def snippets(service) -> list[int]:
    """The processes of running snippets: those that are below a lane."""
    return [pid for pid in service.processes() if b"sleep" in cmdline(service, pid)]


def cmdline(service, pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return (service.proc / str(pid) / "cmdline").read_bytes()
    return b""


def test_sigterm_ends_it_cleanly_with_a_run_under_way(start_service, wait_until):
    service = start_service("--lanes", "1")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        call = pool.submit(service.post, {"code": SLEEP, "limits": {"wall_s": 60}})
        wait_until(lambda: snippets(service))
        below = service.processes()
        service.process.terminate()
        assert service.process.wait(timeout=30) == -signal.SIGTERM
        assert call.result(timeout=30).status_code == 503  # a fault of the service, none of the code
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in below))
    assert list(service.scratch.iterdir()) == []


def test_runs_may_end_while_it_stops(start_service, wait_until):
    service = start_service("--lanes", "1")
    code = "import subprocess; subprocess.run(['sleep', '0.4']); print('done')"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        call = pool.submit(service.post, {"code": code, "limits": {"wall_s": 60}})
        wait_until(lambda: snippets(service))
        service.process.terminate()
        assert call.result(timeout=30).json()["stdout"] == "done\n"
    service.process.wait(timeout=30)


def test_sigkill_of_the_service_takes_the_snippets_along(start_service, wait_until):
    service = start_service("--lanes", "1")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        call = pool.submit(service.post, {"code": SLEEP, "limits": {"wall_s": 60}})
        wait_until(lambda: snippets(service))
        below = descendants(service.pid)
        service.process.kill()
        service.process.wait()
        assert call.exception(timeout=30) is not None
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in below))
    groups = list(pathlib.Path("/sys/fs/cgroup").glob("*/sandbox-service-*"))
    start_service("--lanes", "1")  # sweeps what the dead one left
    left = [group for group in groups if group.exists() and is_stale(group.name)]
    assert left == []


def test_the_death_of_a_lane_is_a_fault_of_ours_and_survived(start_service, wait_until):
    service = start_service("--lanes", "1")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        call = pool.submit(service.run, SLEEP, limits={"wall_s": 60})
        wait_until(lambda: snippets(service))
        snippet = next(pid for pid in service.processes() if snippets(service)[0] in children(pid))
        lane = next(pid for pid in service.processes() if snippet in children(pid))
        os.kill(lane, signal.SIGKILL)
        answer = call.result(timeout=30)
    assert (answer["outcome"], answer["retryable"]) == ("infra_error", True)
    assert service.run("print(1)")["stdout"] == "1\n"
    assert service.metric("sandbox_lane_deaths") == 1
    assert snippets(service) == []


def test_the_death_of_the_templates_is_survived(start_service, wait_until):
    service = start_service("--lanes", "2")
    below = service.processes()
    for pid in children(service.pid):
        os.kill(pid, signal.SIGKILL)
    outcomes = [service.run("print(1)")["outcome"] for _ in range(6)]
    assert set(outcomes) <= {"ok", "infra_error"} and outcomes[-2:] == ["ok", "ok"]
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in below))
    assert service.metric("sandbox_template_starts") == 2


def test_the_queue_is_bounded_and_its_time_is_not_charged_to_the_run(start_service):
    service = start_service("--lanes", "1", "--queue", "2")
    body = {"code": "import time; time.sleep(0.5)", "limits": {"wall_s": 30}}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(service.post, [body] * 8))
    refused = [reply for reply in replies if reply.status_code == 429]
    answers = [reply.json() for reply in replies if reply.status_code == 200]
    assert len(answers) + len(refused) == 8 and refused and len(answers) >= 3
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
    assert all(answer["outcome"] == "ok" for answer in answers)
    slowest = max(answers, key=lambda answer: answer["queue_ms"])
    assert slowest["queue_ms"] > 400  # at least one other run of 500 ms came first


def test_work_of_clients_that_left_is_dropped(start_service, wait_until):
    service = start_service("--lanes", "1")
    url = f"{service.http.base_url}/v1/run"
    with pytest.raises(httpx.ReadTimeout):  # while it runs
        httpx.post(url, json={"code": SLEEP, "limits": {"wall_s": 60}}, timeout=0.5)
    wait_until(lambda: not snippets(service))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = pool.submit(service.run, "import subprocess; subprocess.run(['sleep', '0.7'])")
        wait_until(lambda: snippets(service))
        with pytest.raises(httpx.ReadTimeout):  # while it waits
            httpx.post(url, json={"code": "print(2)"}, timeout=0.2)
        assert first.result()["outcome"] == "ok"
    assert service.run("print(1)")["outcome"] == "ok"
    assert service.metric("sandbox_dropped_total") == 1


def test_a_deadline_that_can_t_be_kept_is_refused_at_once(start_service, wait_until):
    service = start_service("--lanes", "1")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pool.submit(service.run, "import subprocess; subprocess.run(['sleep', '1'])", limits={"wall_s": 60})
        wait_until(lambda: snippets(service))
        late = service.post({"code": "print(1)", "deadline_s": 0.001})
    assert late.status_code == 429 and int(late.headers["retry-after"]) >= 1
    assert service.metric('sandbox_refused_total{endpoint="run",reason="deadline"}') == 1


def test_a_bearer_token_is_asked_for(start_service):
    service = start_service("--lanes", "1", environment={"SANDBOX_TOKEN": "s3cret"})
    assert service.post({"code": "print(1)"}).status_code == 401
    assert service.post({"code": "print(1)"}, headers={"Authorization": "Bearer nope"}).status_code == 401
    right = service.post({"code": "print(1)"}, headers={"Authorization": "Bearer s3cret"})
    assert right.json()["stdout"] == "1\n"
    assert service.health()["status"] == "ok"
    code = "import os; print('s3cret' in str(os.environ))"
    assert (
        service.post({"code": code}, headers={"Authorization": "Bearer s3cret"}).json()["stdout"] == "False\n"
    )


def test_ctrl_c_ends_it_without_a_traceback(start_service, capfd):
    service = start_service("--lanes", "1")
    service.process.send_signal(signal.SIGINT)
    service.process.wait(timeout=30)
    assert "Traceback" not in capfd.readouterr().err
    assert list(service.scratch.iterdir()) == []


def test_the_address_line_is_the_only_output(start_service):
    service = start_service("--lanes", "1")
    assert str(service.http.base_url).startswith("http://127.0.0.1:")
    assert service.http.get("/health").json()["lanes"] == 1
    service.process.stdin.close()
    assert service.process.wait(timeout=30) == 0
    assert service.process.stdout.read() == b""
