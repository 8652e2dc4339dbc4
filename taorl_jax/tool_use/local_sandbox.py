"""A sandbox service of our own: started with the command, kept alive during it, gone after it."""

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import taorl_jax
from taorl_jax.tool_use.result import SandboxDown

_START_S = 90.0
_STOP_S = 10.0
_EXIT_NOT_FIT = 3  # of the service: it says why in its last line
MAX_RESTARTS = 5
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR")  # the service needs no more, so nothing more can leak
_logger = logging.getLogger(__name__)


class LocalSandbox:
    """Context manager around a service process on a free port; `url` is where it listens.

    The service has a session of its own, so Ctrl-C in the terminal reaches only us; it stops when our end of
    its stdin closes, even if we are killed. If it dies meanwhile, it is started again on the same port, up to
    MAX_RESTARTS times.

    Args:
      lanes: snippets at once; 0: one a core.
      min_isolation: the tier below which the service does not start.
      log_path: file that the service's log is appended to.

    Raises (on entry):
      SandboxDown: the service did not come up.
    """

    def __init__(self, lanes: int, min_isolation: str, log_path):
        self._lanes, self._min_isolation, self._log_path = lanes, min_isolation, Path(log_path)
        self._lock = threading.Lock()  # held while the process is replaced or stopped
        self._stopping = threading.Event()
        self.url = ""
        self.pid = 0
        self.restarts = 0

    def __enter__(self):
        self._process, self.url = self._start(port=0)
        self._supervisor = threading.Thread(target=self._supervise, name="sandbox-supervisor", daemon=True)
        self._supervisor.start()
        return self

    def __exit__(self, *_):
        self._stopping.set()
        with self._lock:
            _stop(self._process)
        self._supervisor.join()

    def _start(self, port: int) -> tuple[subprocess.Popen, str]:
        command = [sys.executable, "-m", "sandbox_service", "--port", str(port), "--die-with-parent"]
        command += ["--min-isolation", self._min_isolation]
        command += ["--lanes", str(self._lanes)] if self._lanes else []
        with open(self._log_path, "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=Path(taorl_jax.__file__).parents[1],  # where sandbox_service lies, installed or not
                env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
                start_new_session=True,
            )
        self.pid = process.pid
        return process, self._ready_url(process)

    def _ready_url(self, process: subprocess.Popen) -> str:
        """Waits for the line that the service prints when it listens and has tested itself."""
        deadline = time.monotonic() + _START_S
        while not self._stopping.is_set() and time.monotonic() < deadline:
            if select.select([process.stdout], [], [], 0.1)[0]:
                if line := process.stdout.readline():
                    return json.loads(line)["url"]
                break
        _stop(process)
        if process.returncode == _EXIT_NOT_FIT:
            reason = self._log_path.read_text(encoding="utf-8").rstrip().rpartition("\n")[2]
            raise SandboxDown(f"{reason}, which is `sandbox.min_isolation` here")
        raise SandboxDown(
            f"the sandbox service did not start (exit code {process.returncode}); its log is {self._log_path}"
        )

    def _supervise(self):
        port = urlsplit(self.url).port
        while True:
            self._process.wait()
            with self._lock:
                if self._stopping.is_set():
                    return
                if self.restarts == MAX_RESTARTS:
                    _logger.error(
                        "the sandbox service died after %d restarts; see %s", self.restarts, self._log_path
                    )
                    return
                self.restarts += 1
                self._restart(port)

    def _restart(self, port: int):
        code = self._process.returncode
        _logger.warning("the sandbox service died (exit code %s); restart %d", code, self.restarts)
        _stop(self._process)
        try:
            self._process, _ = self._start(port)
        except SandboxDown as error:  # the supervisor finds it dead and counts on
            _logger.warning("%s", error)


def _stop(process: subprocess.Popen):
    """Ends a service; one that does not end by itself is killed, its lanes then end by themselves."""
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
