"""What verl's and SimpleTIR's clients make of our answers, with their decision tables written anew."""

import concurrent.futures
import contextlib
import json
import os
import signal

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from sandbox_service.answer import failed
from sandbox_service.http.sandbox_fusion import sandbox_fusion_routes
from sandbox_service.http.simpletir import simpletir_routes
from sandbox_service.server.metrics import Metrics
from sandbox_service.settings import Settings

RUN_CODE, FAAS = "/run_code", "/faas/sandbox/"


def verl(response) -> int | str:
    """The verdict of verl's client on a `/run_code` answer: 504 is retried, all else is final."""
    if response.status_code == 504:
        return "retry"
    if response.status_code != 200:
        return -1
    body = response.json()
    run = body["run_result"]
    if body["status"] == "SandboxError":
        return -1
    if body["status"] == "Success":
        return 1 if run["status"] == "Finished" and run["return_code"] == 0 else -1
    if run["status"] == "TimeLimitExceeded":
        return -3
    return -2 if run["status"] == "Finished" and run["return_code"] != 0 else -1


def simpletir(response) -> tuple | str:
    """Observation and validity that SimpleTIR makes of a `/faas/sandbox/` answer; 5xx is retried."""
    if response.status_code >= 500:
        return "retry"
    run = response.json()["run_result"]
    if run["stderr"]:
        return run["stderr"][-512:], False
    return run["stdout"], True


CASES = {
    "ok": "print(6 * 7)",
    "exception": "print(1)\n1/0",
    "nonzero_exit": "import sys; sys.exit(3)",
    "timeout": "print('early', flush=True)\nimport time; time.sleep(60)",
    "memory_limit": "x = []\nwhile True: x.append(bytearray(10 << 20))",
    "output_limit": "while True: print('x' * 100_000)",
    "signal": "import os; os.abort()",
}
VERL = {
    "ok": (1, 0),
    "exception": (-2, 1),
    "nonzero_exit": (-2, 3),
    "timeout": (-3, None),
    "memory_limit": (-2, 137),
    "output_limit": (-2, 137),
    "signal": (-2, -6),
}


@pytest.mark.parametrize("outcome", CASES)
def test_verl(service, outcome):
    request = {
        "code": CASES[outcome],
        "language": "python",
        "stdin": None,
        "compile_timeout": 10,
        "run_timeout": 1 if outcome == "timeout" else 20,
        "memory_limit_MB": 1024,
        "files": {},
        "fetch_files": [],
        "unknown_field": 1,
    }
    response = service.post(request, RUN_CODE)
    verdict, return_code = VERL[outcome]
    assert verl(response) == verdict
    body = response.json()
    assert set(body) == {"status", "message", "compile_result", "run_result", "executor_pod_name", "files"}
    assert body["compile_result"] is None and body["executor_pod_name"] is None
    run = body["run_result"]
    assert run["return_code"] == return_code
    assert all(isinstance(run[name], str) for name in ("status", "stdout", "stderr"))
    assert isinstance(run["execution_time"], float)
    if outcome == "timeout":
        assert run["stdout"] == "early\n"
    if outcome == "memory_limit":
        assert "MemoryError" in run["stderr"]


def test_verl_s_stdin_and_files(service):
    request = {"code": "print(input())\nopen('out', 'w').write(open('in').read() * 2)", "stdin": "a\n"}
    request |= {"files": {"in": "eHk="}, "fetch_files": ["out", "absent"]}
    body = service.post(request, RUN_CODE).json()
    assert (body["status"], body["run_result"]["stdout"], body["files"]) == (
        "Success",
        "a\n",
        {"out": "eHl4eQ=="},
    )


@pytest.mark.parametrize("outcome", CASES)
def test_simpletir(service, outcome):
    request = {
        "code": CASES[outcome],
        "stdin": "",
        "language": "python",
        "compile_timeout": 1.0,
        "unknown": 2,
    }
    request["run_timeout"] = 1.0 if outcome == "timeout" else 20.0
    response = service.post(request, FAAS)
    body = response.json()
    assert body["status"] == {"ok": "success", "timeout": "timeout"}.get(outcome, "runtime_error")
    assert body["run_result"]["status"] == body["status"]
    assert body["created_at"].startswith("20")
    observation, valid = simpletir(response)
    assert valid == (outcome == "ok")
    assert observation == "42\n" if valid else observation  # something is said of every failure
    if outcome == "timeout":
        assert body["run_result"] == {"status": "timeout", "stdout": "early\n", "stderr": "Timeout\n"}


@pytest.mark.parametrize("path", ["/faas/sandbox", "/faas/sandbox/", "/faas/sandbox/run_code"])
def test_every_path_of_simpletir_s_clients_without_a_redirect(service, path):
    assert simpletir(service.post({"code": "print(1)"}, path)) == ("1\n", True)


@pytest.mark.parametrize("path", [RUN_CODE, FAAS])
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "code"),
        ({"code": "", "language": "cobol"}, "language"),
        ({"code": "", "run_timeout": -1}, "run_timeout"),
        ({"code": "#" * 300_000}, "code"),
    ],
)
def test_malformed_requests_are_refused_by_field(service, path, body, field):
    response = service.post(body, path)
    assert response.status_code == 422
    assert [error["field"] for error in response.json()["errors"]] == [field]


@pytest.mark.parametrize(
    "files", [{"../x": "eHk="}, {"a/b": "eHk="}, {"ok": "no base64!"}, {"main.py": "eHk="}, {"x" * 300: ""}]
)
def test_files_that_can_t_be_placed_are_refused_by_field(service, files):
    response = service.post({"code": "print(1)", "files": files}, RUN_CODE)
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"].startswith("files")


def test_overload_and_outage_make_each_client_retry(start_service):
    """Whatever answer is not a retry is that of a run which did take place."""
    service = start_service("--lanes", "1", "--queue", "1")
    body = {"code": "import time; time.sleep(0.3); print(1)"}
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        of_verl = [pool.submit(service.post, body, RUN_CODE) for _ in range(6)]
        of_simpletir = [pool.submit(service.post, body, FAAS) for _ in range(6)]
        verdicts = [verl(call.result()) for call in of_verl]
        observations = [simpletir(call.result()) for call in of_simpletir]
    assert set(verdicts) <= {1, "retry"} and set(observations) <= {("1\n", True), "retry"}
    assert "retry" in verdicts + observations and (1 in verdicts or ("1\n", True) in observations)
    for pid in service.processes():  # the next run of each lane meets its death
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert {verl(service.post(body, RUN_CODE)), simpletir(service.post(body, FAAS))} <= {
        "retry",
        1,
        ("1\n", True),
    }


def test_ping(service):
    assert json.loads(service.http.get("/v1/ping").text) == "pong"


class Answering:
    """Stands for the service where an outcome is hard to come by: answers everything with one of them."""

    def __init__(self, outcome):
        self.settings, self.metrics, self.admission = Settings(), Metrics(), self
        self._answer = failed(outcome, "why") | {"wall_ms": 5.0}

    def check(self, wait_s):
        """There is always room."""

    async def run(self, work, **_):
        return self._answer, 0.0


@pytest.mark.parametrize(
    ("outcome", "to_verl", "to_simpletir"),
    [
        ("infra_error", "retry", "retry"),  # a fault of ours is never a result
        ("cpu_limit", -3, ("Timeout\n", False)),
        ("rejected", -2, ("why\n", False)),
    ],
)
def test_outcomes_that_no_snippet_brings_about(outcome, to_verl, to_simpletir):
    app = FastAPI()
    app.include_router(sandbox_fusion_routes(Answering(outcome)))
    app.include_router(simpletir_routes(Answering(outcome)))
    client = TestClient(app)
    assert verl(client.post(RUN_CODE, json={"code": "1"})) == to_verl
    assert simpletir(client.post(FAAS, json={"code": "1"})) == to_simpletir
