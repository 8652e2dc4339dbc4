"""The command: its address line, its refusals, its end, its queue."""

import concurrent.futures
import os
import signal
import socket
import subprocess
import sys

import httpx
import pytest

import sandbox_service
from sandbox_service.process_tree import descendants

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


@pytest.mark.parametrize("arguments", [["--lanes", "-1"], ["--queue", "-1"], ["--port", "x"], ["--nope"]])
def test_wrong_arguments_are_refused(arguments):
    refused = subprocess.run(
        [*COMMAND, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 2
    assert arguments[0] in refused.stderr


def test_sigterm_ends_it_cleanly_with_a_run_under_way(start_service, wait_until):
    service = start_service("--lanes", "1")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        call = pool.submit(service.post, {"code": "import time; time.sleep(60)", "limits": {"wall_s": 60}})
        wait_until(lambda: len(service.processes()) == 2)
        below = service.processes()
        service.process.terminate()
        assert service.process.wait(timeout=30) == -signal.SIGTERM
        # Both are faults of the service to a client, and neither is one of the code.
        ended = call.exception(timeout=30)
        assert isinstance(ended, httpx.TransportError) if ended else call.result().status_code == 503
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in below))
    assert list(service.scratch.iterdir()) == []


def test_sigkill_of_the_service_takes_the_snippets_along(start_service, wait_until):
    service = start_service("--lanes", "1")
    code = (
        "import subprocess, time\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\ntime.sleep(600)"
    )
    with concurrent.futures.ThreadPoolExecutor() as pool:
        call = pool.submit(service.post, {"code": code, "limits": {"wall_s": 60}})
        wait_until(lambda: len(service.processes()) == 3)
        below = descendants(service.process.pid)
        service.process.kill()
        service.process.wait()
        assert call.exception(timeout=30) is not None
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in below))
    wait_until(lambda: list(service.scratch.iterdir()) == [])


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


def test_requests_whose_client_left_are_not_run(start_service, wait_until, tmp_path):
    service = start_service("--lanes", "1")
    marker = tmp_path / "marker"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first = pool.submit(service.post, {"code": "import time; time.sleep(0.7)"})
        wait_until(lambda: len(service.processes()) == 2)
        body = {"code": f"open({str(marker)!r}, 'w')"}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{service.http.base_url}/v1/run", json=body, timeout=0.2)
        assert first.result().json()["outcome"] == "ok"
    assert service.run("print(1)")["outcome"] == "ok"
    assert not marker.exists()


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
