"""The real service as its own process, in each of the privilege modes that this machine allows."""

import dataclasses
import json
import os
import subprocess
import time
from pathlib import Path

import httpx
import privileges
import pytest

import sandbox_service
from sandbox_service.zygote.process_tree import descendants

REPOSITORY = Path(sandbox_service.__file__).parents[1]


@dataclasses.dataclass
class Service:
    """A running service and what surrounds it."""

    process: subprocess.Popen
    http: httpx.Client
    scratch: Path
    mode: str
    repository: Path = REPOSITORY
    proc: Path = Path("/proc")

    @property
    def pid(self) -> int:
        return self.process.pid

    def post(self, body: dict, path: str = "/v1/run", **options) -> httpx.Response:
        return self.http.post(path, json=body, **options)

    def run(self, code: str, **fields) -> dict:
        response = self.post({"code": code, **fields})
        assert response.status_code == 200, response.text
        return response.json()

    def health(self) -> dict:
        return self.http.get("/health").json()

    def metric(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and line[0] != "#")

    def processes(self) -> list[int]:
        """The service's lanes and templates, and whatever else lives below the service."""
        return sorted(descendants(self.pid))

    def boxes(self) -> list[Path]:
        return list(self.scratch.glob("*/lane-*/*"))


def start(scratch: Path, *arguments: str, environment: dict | None = None, mode: str = "root") -> Service:
    scratch.mkdir(exist_ok=True)
    scratch.chmod(0o777)
    process = subprocess.Popen(
        [*privileges.prefix(mode), "-m", "sandbox_service", "--port", "0", "--die-with-parent", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(scratch), **(environment or {})},
    )
    line = process.stdout.readline()
    assert line, f"the service did not start (exit code {process.wait()})"
    return Service(process, httpx.Client(base_url=json.loads(line)["url"], timeout=90), scratch, mode)


def stop(service: Service):
    service.http.close()
    service.process.stdin.close()
    assert service.process.wait(timeout=30) == 0
    service.process.stdout.close()
    assert list(service.scratch.iterdir()) == []


def left_behind() -> set[str]:
    """Control groups and mounts of this machine, of which a service might leave some behind."""
    groups = {str(path) for path in Path("/sys/fs/cgroup").glob("*/sandbox-service-*/**")}
    return groups | set(Path("/proc/self/mounts").read_text().splitlines())


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    """A service with two lanes and whatever privileges we have, shared by all tests."""
    secret = {"SECRET_TOKEN": "hunter2"}
    mode = privileges.own()
    running = start(
        tmp_path_factory.mktemp("scratch"),
        *("--lanes", "2", "--min-isolation", "weak"),
        environment=secret,
        mode=mode,
    )
    yield running
    stop(running)


@pytest.fixture(scope="module", params=privileges.available())
def service_of_mode(request):
    """A service in each privilege mode, which leaves nothing behind."""
    before = left_behind()
    with privileges.shared_folder() as scratch:
        running = start(scratch, "--lanes", "2", "--min-isolation", "weak", mode=request.param)
        if (health := running.health())["isolation"] == "weak":
            stop(running)
            give_up = (
                pytest.fail if "CI" in os.environ else pytest.skip
            )  # CI must not pass by testing nothing
            give_up(f"this machine isolates too little in mode {request.param}: {health['layers']}")
        yield running
        below = running.processes()
        stop(running)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in below)
    assert left_behind() <= before


@pytest.fixture
def start_service(tmp_path):
    """Starts services with arguments of the test's own."""
    running = []

    def start_one(*arguments, **options):
        options.setdefault("mode", privileges.own())
        scratch = tmp_path / f"scratch-{len(running)}"
        running.append(start(scratch, "--min-isolation", "weak", *arguments, **options))
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
