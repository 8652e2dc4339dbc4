"""The client against the real service over HTTP, and against faults that only a stand-in can play."""

import concurrent.futures
import http.server
import json
import socket
import threading

import pytest

from taorl_jax.tool_use.local_sandbox import LocalSandbox
from taorl_jax.tool_use.result import SandboxDown, SandboxFailure, SandboxTooWeak
from taorl_jax.tool_use.sandbox_client import SandboxClient

SETTINGS = {
    "wall_s": 5.0,
    "memory_mb": 256,
    "max_concurrent": 32,
    "patience_s": 20.0,
    "min_isolation": "weak",
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    with LocalSandbox(
        lanes=2, min_isolation="weak", log_path=tmp_path_factory.mktemp("sandbox") / "log"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(sandbox):
    with SandboxClient([sandbox.url], **SETTINGS) as connected:
        yield connected


def run(client, code):
    return client.submit(code).result(timeout=60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Scripted(http.server.BaseHTTPRequestHandler):
    """Gives the replies of its server's list one after the other, the last one for ever."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        replies = self.server.replies
        status, headers, body = replies.pop(0) if len(replies) > 1 else replies[0]
        self.server.seen += 1
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.server.health).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def scripted():
    servers = []

    def start(*replies):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
        server.replies, server.seen = list(replies), 0
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        servers.append(server)
        return server, f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def scripted_health(scripted):
    def start(health):
        server, url = scripted((200, {}, {}))
        server.health = health
        return url

    return start


FINE = {
    "outcome": "ok",
    "retryable": False,
    "stdout": "1\n",
    "stderr": "",
    "files": {},
    "wall_ms": 1.0,
}
BROKEN = {**FINE, "outcome": "infra_error", "retryable": True, "stderr": "no process to be had"}


def test_runs_code(client):
    result = run(client, "print(6 * 7)")
    assert (result.outcome, result.stdout, result.stderr, result.final_answer) == ("ok", "42\n", "", None)
    assert result.wall_ms > 0


def test_many_at_once_all_come_back_in_their_own_future(client):
    futures = [client.submit(f"print({k})") for k in range(64)]
    assert [future.result(timeout=60).stdout for future in futures] == [f"{k}\n" for k in range(64)]


def test_failed_code_is_a_result_and_is_not_retried(client):
    before = client.stats()
    result = run(client, "1/0")
    assert result.outcome == "exception"
    assert result.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert client.stats() == before


def test_limits_are_sent(sandbox):
    with SandboxClient([sandbox.url], **{**SETTINGS, "wall_s": 0.5}) as hasty:
        assert run(hasty, "print('early', flush=True)\nwhile True: pass").stdout == "early\n"
        assert run(hasty, "while True: pass").outcome == "timeout"
        assert run(hasty, "bytearray(300 << 20)").outcome == "memory_limit"


@pytest.mark.parametrize(
    ("code", "answer", "stdout"),
    [
        ("final_answer(42)", "42", "\\boxed{42}\n"),
        ("final_answer(1)\nfinal_answer('x y')", "x y", "\\boxed{1}\n\\boxed{x y}\n"),
        ("print('\\\\boxed{42}')", None, "\\boxed{42}\n"),
        ("final_answer('')", "", "\\boxed{}\n"),
        ("import os; os.mkdir('d'); os.chdir('d'); final_answer(1)", "1", "\\boxed{1}\n"),
        ("print = str = open = None\nfinal_answer(0.5)", "0.5", "\\boxed{0.5}\n"),
        ("def final_answer(x): pass\nfinal_answer(1)", None, ""),
        ("final_answer('\u00e9\u4e2d')", "\u00e9\u4e2d", "\\boxed{\u00e9\u4e2d}\n"),
        ("if __name__ == '__main__': final_answer(7)", "7", "\\boxed{7}\n"),
        (
            '"""Doc."""\nfrom __future__ import annotations\nprint(__doc__)\nx: Nope = 1\nfinal_answer(x)',
            "1",
            None,
        ),
    ],
)
def test_final_answer(client, code, answer, stdout):
    result = run(client, code)
    assert result.final_answer == answer
    if stdout is not None:
        assert (result.outcome, result.stdout) == ("ok", stdout)


def test_final_answer_survives_a_later_failure(client):
    result = run(client, "final_answer(3)\nraise ValueError('late')")
    assert (result.outcome, result.final_answer) == ("exception", "3")


@pytest.mark.parametrize(
    ("code", "last_line"),
    [
        ("x = 1\nprint(x", "SyntaxError: '(' was never closed"),
        (
            "def f():\npass",
            "IndentationError: expected an indented block after function definition on line 1",
        ),
        (
            "x = 1\nfrom __future__ import annotations",
            "SyntaxError: from __future__ imports must occur at the",
        ),
        ("raise KeyError('k')", "KeyError: 'k'"),
    ],
)
def test_errors_end_stderr_and_count_the_lines_of_the_code(client, code, last_line):
    result = run(client, code)
    assert result.outcome == "exception"
    assert result.stderr.splitlines()[-1].startswith(last_line)
    assert 'File "<code>", line' in result.stderr


def test_the_helper_leaves_no_trace_in_the_code(client):
    result = run(client, "print([name for name in dir() if not name.startswith('__')], __doc__)")
    assert result.stdout == "['RECORD_FILE', 'final_answer'] None\n"


def test_check_returns_the_health_of_every_service(client, sandbox):
    assert [health["status"] for health in client.check()] == ["ok"]
    with SandboxClient([sandbox.url, sandbox.url + "/"], **SETTINGS) as twice:
        assert [health["lanes"] for health in twice.check()] == [2, 2]


def test_check_names_an_address_that_does_not_answer(sandbox):
    dead = f"http://127.0.0.1:{free_port()}"
    with SandboxClient([sandbox.url, dead], **SETTINGS) as half, pytest.raises(SandboxDown) as refusal:
        half.check()
    assert dead in str(refusal.value) and "sandbox.urls" in str(refusal.value)


@pytest.mark.parametrize("url", ["localhost:1", "http://", "nonsense"])
def test_check_names_an_address_that_is_none(url):
    with SandboxClient([url], **SETTINGS) as client, pytest.raises(SandboxDown, match=r"sandbox\.urls"):
        client.check()


def test_check_refuses_limits_above_the_service_s(sandbox):
    with (
        SandboxClient([sandbox.url], **{**SETTINGS, "wall_s": 1e6}) as greedy,
        pytest.raises(ValueError, match=r"sandbox\.wall_s"),
    ):
        greedy.check()


def test_check_refuses_a_service_that_isolates_too_little(scripted_health):
    url = scripted_health(
        {"status": "ok", "isolation": "weak", "limits": {"max": {"wall_s": 60, "memory_mb": 4096}}}
    )
    with SandboxClient([url], **{**SETTINGS, "min_isolation": "medium"}) as client:
        with pytest.raises(
            SandboxTooWeak, match=r"is weak, `sandbox.min_isolation` asks for medium"
        ) as refusal:
            client.check()
        assert url in str(refusal.value)
    with SandboxClient([url], **SETTINGS) as client:
        assert client.check()[0]["isolation"] == "weak"


def test_no_urls_are_refused():
    with pytest.raises(ValueError, match=r"sandbox\.urls"):
        SandboxClient([], **SETTINGS)


def test_down_when_nothing_ever_answers():
    url = f"http://127.0.0.1:{free_port()}"
    with SandboxClient([url], **{**SETTINGS, "patience_s": 0.5}) as lonely:
        with pytest.raises(SandboxDown, match=url):
            run(lonely, "print(1)")
        assert lonely.stats()["failures"] == 1
        assert lonely.stats()["retries"] >= 1


def test_the_next_url_is_tried(sandbox):
    with SandboxClient([f"http://127.0.0.1:{free_port()}", sandbox.url], **SETTINGS) as half:
        assert [run(half, f"print({k})").stdout for k in range(6)] == [f"{k}\n" for k in range(6)]
        assert half.stats() == {"retries": 3, "failures": 0}  # then the dead one is spared


@pytest.mark.parametrize(
    "reply", [(429, {"Retry-After": "0"}, {}), (502, {}, {}), (503, {}, {}), (504, {}, {}), (200, {}, BROKEN)]
)
def test_faults_of_the_service_are_retried(scripted, reply):
    server, url = scripted(reply, reply, (200, {}, FINE))
    with SandboxClient([url], **SETTINGS) as client:
        assert run(client, "print(1)").outcome == "ok"
        assert client.stats() == {"retries": 2, "failures": 0}
    assert server.seen == 3


def test_retry_after_beyond_our_patience_ends_it(scripted):
    server, url = scripted((429, {"Retry-After": "3600"}, {}))
    with SandboxClient([url], **SETTINGS) as client, pytest.raises(SandboxFailure, match="429"):
        run(client, "print(1)")
    assert server.seen == 1


def test_failure_is_not_called_down_when_something_answered(scripted):
    _, url = scripted((200, {}, BROKEN))
    with SandboxClient([url], **{**SETTINGS, "patience_s": 0.3}) as client:
        with pytest.raises(SandboxFailure, match="no process to be had") as failure:
            run(client, "print(1)")
        assert not isinstance(failure.value, SandboxDown)
        assert client.stats()["failures"] == 1


@pytest.mark.parametrize(
    "reply", [(404, {}, {}), (422, {}, {}), (200, {}, {"hello": 1}), (200, {}, ["not", "ours"])]
)
def test_an_answer_of_something_else_is_a_failure_at_once(scripted, reply):
    server, url = scripted(reply)
    with SandboxClient([url], **SETTINGS) as client, pytest.raises(SandboxFailure, match=url):
        run(client, "print(1)")
    assert server.seen == 1


def test_a_service_that_never_answers_does_not_hang_us():
    hasty = {**SETTINGS, "wall_s": 0.1, "patience_s": 0.4}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with SandboxClient([url], **hasty) as client, pytest.raises(SandboxDown, match="no answer within"):
            run(client, "print(1)")


def test_close_cancels_what_is_pending_and_ends_the_thread(sandbox):
    threads = threading.active_count()
    client = SandboxClient([sandbox.url], **SETTINGS)
    futures = [client.submit("import time; time.sleep(1)") for _ in range(40)]
    client.close()
    client.close()
    assert threading.active_count() == threads
    for future in futures:
        with pytest.raises(concurrent.futures.CancelledError):
            future.result(timeout=1)
    with pytest.raises(RuntimeError, match="closed"):
        client.submit("print(1)")
