"""The service of our own: its life, its deaths, and what it leaves behind."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import taorl_jax
from taorl_jax.tool_use import local_sandbox
from taorl_jax.tool_use.local_sandbox import LocalSandbox
from taorl_jax.tool_use.result import SandboxDown
from taorl_jax.tool_use.sandbox_client import SandboxClient

SETTINGS = {"wall_s": 5.0, "memory_mb": 256, "max_concurrent": 8, "patience_s": 60.0, "min_isolation": "weak"}
REPOSITORY = Path(taorl_jax.__file__).parents[1]


def wait_until(condition, seconds=30.0):
    """Waits for what happens in another process; the bound only turns a hang into a failure."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "still not so"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture(autouse=True)
def scratch_root(tmp_path, monkeypatch):
    """Gives each service a directory for temporary files of its own, to see what is left in it."""
    root = tmp_path / "tmp"
    root.mkdir()
    monkeypatch.setenv("TMPDIR", str(root))
    return root


def test_serves_and_leaves_nothing(tmp_path, scratch_root):
    with LocalSandbox(lanes=1, min_isolation="weak", log_path=tmp_path / "log") as sandbox:
        with SandboxClient([sandbox.url], **SETTINGS) as client:
            assert client.check()[0]["lanes"] == 1
            assert client.submit("print(1)").result(60).stdout == "1\n"
        assert len(list(scratch_root.iterdir())) == 1
        pid = sandbox.pid
    assert gone(pid)
    assert list(scratch_root.iterdir()) == []


def test_lanes_default_to_the_cores(tmp_path):
    with (
        LocalSandbox(lanes=0, min_isolation="weak", log_path=tmp_path / "log") as sandbox,
        SandboxClient([sandbox.url], **SETTINGS) as client,
    ):
        assert client.check()[0]["lanes"] == os.cpu_count()


def sleepers(seconds: str) -> list[int]:
    """Processes that `sleep` for so long: a snippet's, which nothing else could tell us of."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                found.append(int(folder.name))
    return found


def test_stopping_does_not_wait_for_a_running_snippet(tmp_path, scratch_root):
    code = "import subprocess; subprocess.run(['sleep', '60.125'])"
    with LocalSandbox(lanes=1, min_isolation="weak", log_path=tmp_path / "log") as sandbox:
        with SandboxClient([sandbox.url], **{**SETTINGS, "wall_s": 60.0}) as client:
            future = client.submit(code)
            wait_until(lambda: sleepers("60.125"))
        assert future.cancelled()
    assert sleepers("60.125") == []
    assert list(scratch_root.iterdir()) == []


def test_a_call_survives_the_death_of_the_service(tmp_path, scratch_root, caplog):
    """The call is answered by the service that took the dead one's place, at the same address."""
    caplog.set_level(logging.WARNING)
    code = "import subprocess; subprocess.run(['sleep', '2.125']); print('done')"
    with LocalSandbox(lanes=1, min_isolation="weak", log_path=tmp_path / "log") as sandbox:
        with SandboxClient([sandbox.url], **SETTINGS) as client:
            future = client.submit(code)
            wait_until(lambda: sleepers("2.125"))
            os.kill(sandbox.pid, signal.SIGKILL)
            result = future.result(timeout=60)
            assert (result.outcome, result.stdout) == ("ok", "done\n")
            assert client.stats()["retries"] >= 1
        assert sandbox.restarts == 1
    assert "restart 1" in caplog.text
    assert sleepers("2.125") == []
    assert list(scratch_root.iterdir()) == []


def test_gives_up_after_some_restarts(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(local_sandbox, "MAX_RESTARTS", 1)
    with LocalSandbox(lanes=1, min_isolation="weak", log_path=tmp_path / "log") as sandbox:
        first = sandbox.pid
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: sandbox.restarts == 1 and sandbox.pid != first)
        wait_until(lambda: healthy(sandbox.url))
        os.kill(sandbox.pid, signal.SIGKILL)
        wait_until(lambda: "died after 1 restarts" in caplog.text)
        assert not healthy(sandbox.url)


def healthy(url: str) -> bool:
    with SandboxClient([url], **SETTINGS) as client:
        try:
            return bool(client.check())
        except SandboxDown:
            return False


def test_a_service_that_cannot_start_is_reported_with_its_log(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(local_sandbox.sys, "executable", "/bin/false")
    with (
        pytest.raises(SandboxDown, match=r"exit code 1.*my\.log"),
        LocalSandbox(1, "weak", tmp_path / "my.log"),
    ):
        pass


PARENT = """
import os, sys, time
from taorl_jax.tool_use.local_sandbox import LocalSandbox
with LocalSandbox(lanes=1, min_isolation="weak", log_path=sys.argv[1]) as sandbox:
    try:
        print(sandbox.pid, flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        os.kill(sandbox.pid, 0)
        print("interrupted, service alive", flush=True)
"""


@pytest.fixture
def parent(tmp_path):
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, start_new_session=True
    )
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_dies_with_a_killed_parent(parent, scratch_root):
    pid = int(parent.stdout.readline())
    assert not gone(pid)
    parent.kill()
    wait_until(lambda: gone(pid))
    wait_until(lambda: list(scratch_root.iterdir()) == [])


def test_ctrl_c_in_the_terminal_is_the_parent_s_to_handle(parent):
    pid = int(parent.stdout.readline())
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.stdout.readline() == "interrupted, service alive\n"
    assert parent.wait(timeout=30) == 0
    assert gone(pid)
