"""One snippet from job to answer, in a lane."""

import base64
import contextlib
import dataclasses
import os
import signal
import sys

from sandbox_service.limits import Limits
from sandbox_service.outcome import completed_stderr, name_outcome
from sandbox_service.zygote import box
from sandbox_service.zygote.child import Confinement, confine
from sandbox_service.zygote.environment import INTERPRETER_FLAGS, environment
from sandbox_service.zygote.execute import run_script
from sandbox_service.zygote.process_group import PidNamespace, Swept
from sandbox_service.zygote.supervisor import Supervision

_SCRIPT = "main.py"
# Python ignores these, and exec keeps what is ignored.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_CONFINED = b"confined"
_EXIT_UNCONFINED = 127


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a lane runs its snippets.

    Attributes:
      confinement: what confines them.
      group: what their processes are killed by.
      workdir: directory of the lane, for scratch directories on disk.
      control: descriptor that is closed at the other end when the service goes away.
    """

    confinement: Confinement
    group: PidNamespace | Swept
    workdir: str
    control: int

    def scratch(self, limits: Limits):
        """Context of a run's scratch directory."""
        uid = self.confinement.uid
        if self.confinement.mechanisms.jail:
            return box.in_memory(os.geteuid() if uid is None else uid, limits)
        return box.on_disk(self.workdir, uid)

    def script_path(self, scratch: str) -> str:
        """The script's name in tracebacks, which must not differ from run to run."""
        return f"{scratch}/{_SCRIPT}" if self.confinement.mechanisms.jail else f"/proc/self/cwd/{_SCRIPT}"


def run_snippet(job: dict, place: Place) -> dict:
    """Runs a snippet to its end.

    Args:
      job: `code`, `stdin`, `files` (name -> base64), `fetch_files` (names), `mode`, `limits` (as Limits).
      place: where.

    Returns:
      The fields of a response that do not depend on the queue.

    Raises:
      OSError: the machine could not run it: no process, no memory.
      Aborted: the service is gone.
    """
    limits = Limits(**job["limits"])
    with place.scratch(limits) as scratch, _stdin(job["stdin"].encode()) as stdin:
        files = {name: base64.b64decode(content) for name, content in job["files"].items()}
        box.write(scratch, {**files, _SCRIPT: job["code"].encode()}, place.confinement.uid)
        run = _supervise(job, limits, place, scratch, stdin)
        return _answer(run, limits, box.fetch(scratch, job["fetch_files"]))


@contextlib.contextmanager
def _stdin(content: bytes):
    fd = os.memfd_create("stdin") if content else os.open(os.devnull, os.O_RDONLY)
    try:
        if content:
            os.write(fd, content)
            os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _supervise(job, limits, place, scratch, stdin) -> Supervision:
    stdout, stdout_writer = os.pipe()
    stderr, stderr_writer = os.pipe()
    try:
        try:
            pid = _start(job, limits, place, scratch, (stdin, stdout_writer, stderr_writer))
        finally:
            os.close(stdout_writer)
            os.close(stderr_writer)
        run = Supervision(pid, place.group, (stdout, stderr), limits, place.control, scratch)
        run.run()
        return run
    finally:
        os.close(stdout)
        os.close(stderr)


def _start(job, limits, place, scratch, stdio) -> int:
    """Process id of a confined child that is about to run the script."""
    reader, report = os.pipe()
    place.group.open()
    try:
        pid = os.fork()
    except OSError:
        place.group.close()
        place.group.kill(None)
        raise
    if pid == 0:
        _become_snippet(job["mode"], limits, place, scratch, stdio, report)
    place.group.close()
    os.close(report)
    with open(reader, "rb") as pipe:
        said = pipe.read()
    if said != _CONFINED:
        place.group.kill(pid)
        raise OSError(f"a snippet could not be confined: {said.decode('utf-8', 'replace') or 'it died'}")
    return pid


def _become_snippet(mode, limits, place, scratch, stdio, report):
    """Never returns, whatever happens."""
    try:
        environ = environment(scratch)
        path = place.script_path(scratch)
        confine(place.confinement, limits, scratch, stdio, spare=report)
        with open(path, "rb") as script:
            source = script.read()
        os.write(report, _CONFINED)
        os.close(report)
        report = None
        if mode == "fresh":
            for number in _IGNORED_BY_PYTHON:
                signal.signal(number, signal.SIG_DFL)
            os.execve(sys.executable, [sys.executable, *INTERPRETER_FLAGS, path], environ)
        os.environ.update(environ)
        run_script(path, source)
    except Exception as error:
        os.write(2 if report is None else report, repr(error).encode())
    finally:
        os._exit(_EXIT_UNCONFINED)


def _answer(run: Supervision, limits: Limits, files: dict) -> dict:
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
        "wall_ms": run.wall_s * 1000,
        "cpu_ms": run.cpu_s * 1000,
        "max_rss_kb": run.max_rss_kb,
    }
