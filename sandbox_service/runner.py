"""One snippet from code to answer, without HTTP."""

import contextlib
import os
import sys
import tempfile
import time

from sandbox_service.box import fetch, scratch
from sandbox_service.limits import Limits
from sandbox_service.outcome import completed_stderr, name_outcome
from sandbox_service.spawn import SCRIPT, spawn
from sandbox_service.supervisor import ChildAlarm, Supervision

_KILOBYTE = 1024 if sys.platform == "darwin" else 1  # ru_maxrss is in bytes there


def failed(outcome: str, message: str) -> dict:
    """The answer for a snippet that did not run."""
    return {
        "outcome": outcome,
        "exit_code": None,
        "signal": None,
        "stdout": "",
        "stderr": message + "\n",
        "truncated": {"stdout": False, "stderr": False},
        "files": {},
        "wall_ms": 0.0,
        "cpu_ms": 0.0,
        "max_rss_kb": 0,
    }


def run_snippet(job: dict, workdir: str, alarm: ChildAlarm, control: int) -> dict:
    """Runs a snippet to its end.

    Args:
      job: `code`, `stdin`, `fetch_files` (names) and `limits` (fields of Limits).
      workdir: directory for the scratch directory.
      alarm: tells of ended children.
      control: descriptor that the service closes when it goes away.

    Returns:
      The fields of a response that do not depend on the queue.

    Raises:
      OSError: the machine could not run it: no process, no disk.
      Aborted: `control` was closed.
    """
    try:
        code, stdin = job["code"].encode(), job["stdin"].encode()
    except UnicodeEncodeError as error:
        return failed("rejected", f"code or stdin is not valid Unicode: {error.reason}")
    limits = Limits(**job["limits"])
    os.makedirs(workdir, exist_ok=True)  # an earlier snippet may have removed it
    with scratch(workdir) as box, _open_stdin(workdir, stdin) as stdin_file:
        with open(os.path.join(box, SCRIPT), "wb") as script:
            script.write(code)
        started = time.monotonic()
        run = _supervise(box, stdin_file.fileno(), limits, alarm, control)
        wall_s = time.monotonic() - started
        return _answer(run, limits, wall_s, fetch(box, job["fetch_files"]))


@contextlib.contextmanager
def _open_stdin(workdir: str, content: bytes):
    with tempfile.TemporaryFile(dir=workdir) if content else open(os.devnull, "rb") as file:
        if content:
            file.write(content)
            file.seek(0)
        yield file


def _supervise(box, stdin_fd, limits, alarm, control) -> Supervision:
    stdout, stdout_writer = os.pipe()
    stderr, stderr_writer = os.pipe()
    try:
        try:
            pid = spawn(box, (stdin_fd, stdout_writer, stderr_writer), limits.cpu_s, limits.memory_mb)
        finally:
            os.close(stdout_writer)
            os.close(stderr_writer)
        run = Supervision(pid, (stdout, stderr), limits, alarm, control)
        run.run()
        return run
    finally:
        os.close(stdout)
        os.close(stderr)


def _answer(run: Supervision, limits: Limits, wall_s: float, files: dict) -> dict:
    code = os.waitstatus_to_exitcode(run.status)
    exit_code, signal_number = (code, None) if code >= 0 else (None, -code)
    stderr = run.stderr.text()
    outcome = run.verdict or name_outcome(exit_code, signal_number, run.cpu_s, limits.cpu_s, stderr)
    return {
        "outcome": outcome,
        "exit_code": exit_code,
        "signal": signal_number,
        "stdout": run.stdout.text(),
        "stderr": completed_stderr(stderr, run.note),
        "truncated": {"stdout": run.stdout.truncated, "stderr": run.stderr.truncated},
        "files": files,
        "wall_ms": wall_s * 1000,
        "cpu_ms": run.cpu_s * 1000,
        "max_rss_kb": run.max_rss // _KILOBYTE,
    }
