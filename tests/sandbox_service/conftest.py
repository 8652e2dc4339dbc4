"""The real service as its own process, with a directory of temporary files that only it uses."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

import sandbox_service
from sandbox_service.process_tree import descendants

REPOSITORY = Path(sandbox_service.__file__).parents[1]


@dataclasses.dataclass
class Service:
    """A running service and what surrounds it."""

    process: subprocess.Popen
    http: httpx.Client
    scratch: Path

    def post(self, body: dict) -> httpx.Response:
        return self.http.post("/v1/run", json=body)

    def run(self, code: str, **fields) -> dict:
        response = self.post({"code": code, **fields})
        assert response.status_code == 200, response.text
        return response.json()

    def processes(self) -> list[int]:
        """The service's lanes, and whatever else lives below the service."""
        return descendants(self.process.pid)

    def boxes(self) -> list[Path]:
        return list(self.scratch.glob("*/lane-*/*"))


def start(scratch: Path, *arguments: str, environment: dict | None = None) -> Service:
    process = subprocess.Popen(
        [sys.executable, "-m", "sandbox_service", "--port", "0", "--die-with-parent", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(scratch), **(environment or {})},
    )
    url = json.loads(process.stdout.readline())["url"]
    return Service(process, httpx.Client(base_url=url, timeout=90), scratch)


def stop(service: Service):
    service.http.close()
    service.process.stdin.close()
    assert service.process.wait(timeout=30) == 0
    service.process.stdout.close()
    assert list(service.scratch.iterdir()) == []


@pytest.fixture(scope="package")
def service(tmp_path_factory):
    """A service with two lanes, shared by the tests of this folder."""
    running = start(
        tmp_path_factory.mktemp("scratch"), "--lanes", "2", environment={"SECRET_TOKEN": "hunter2"}
    )
    yield running
    stop(running)


@pytest.fixture
def start_service(tmp_path):
    """Starts services with arguments of the test's own."""
    running = []

    def start_one(*arguments):
        scratch = tmp_path / f"scratch-{len(running)}"
        scratch.mkdir()
        running.append(start(scratch, *arguments))
        return running[-1]

    yield start_one
    for service in running:
        if service.process.poll() is None:
            stop(service)


@pytest.fixture
def wait_until():
    """Waits for what another process does; the bound only turns a hang into a failure."""

    def wait(condition, seconds=30.0):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "still not so"
            time.sleep(0.02)

    return wait
