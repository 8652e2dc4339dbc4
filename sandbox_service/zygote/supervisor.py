"""Watching one running snippet: its output, its clock, all of its processes, its scratch directory."""

import contextlib
import os
import select
import signal
import time

from sandbox_service.limits import Limits
from sandbox_service.zygote import process_tree
from sandbox_service.zygote.box import measure
from sandbox_service.zygote.output import OutputBuffer

_TICK_S = 0.05  # between two looks at the processes
_CHUNK = 64 << 10


class Aborted(Exception):
    """The service is gone: nobody waits for the answer."""


class Supervision:
    """From the start of a snippet until nothing of it is left.

    Attributes:
      stdout, stderr: what it wrote.
      verdict: the outcome if we ended it; None if it ended by itself.
      note: why we ended it, where the outcome does not say so.
      status: its wait status.
      cpu_s, max_rss_kb: seconds of CPU time of all its processes; the largest resident size of one.
      wall_s: seconds until it ended or was ended.
    """

    def __init__(self, pid: int, group, pipes: tuple[int, int], limits: Limits, control: int, box: str):
        self._pid, self._group, self._limits, self._control, self._box = pid, group, limits, control, box
        self.stdout, self.stderr = OutputBuffer(limits.output_bytes), OutputBuffer(limits.output_bytes)
        self._open = dict(zip(pipes, (self.stdout, self.stderr), strict=True))
        self._pidfd = os.pidfd_open(pid)
        self._poll = select.poll()
        for fd in (*pipes, self._pidfd, control):
            self._poll.register(fd, select.POLLIN)
        self._ended = False
        self._started = time.monotonic()
        # Of the pages that it has from the template, each process counts its share.
        self._memory_mb = limits.memory_mb + process_tree.resident_mb([os.getpid()])
        self.verdict: str | None = None
        self.note = ""
        self.status: int | None = None
        self.cpu_s, self.max_rss_kb, self.wall_s = 0.0, 0, 0.0

    def run(self):
        """Returns when the snippet has ended or was ended, and every process of it is dead.

        Raises:
          Aborted: the control descriptor was closed.
        """
        deadline = self._started + self._limits.wall_s
        tick = time.monotonic() + _TICK_S
        while not self._ended and self.verdict is None:
            now = time.monotonic()
            if now >= deadline:
                self.verdict = "timeout"
            elif now >= tick:
                self._look()
                tick = time.monotonic() + _TICK_S
            else:
                self._wait(min(tick, deadline) - now)
        self._end()

    def _wait(self, seconds: float):
        for fd, _ in self._poll.poll(seconds * 1000 + 1):
            if fd == self._control and not os.read(fd, 1):
                self._end()
                raise Aborted
            if fd == self._pidfd:
                self._ended = True
            elif fd in self._open:
                self._read(fd)
        if self.stdout.total + self.stderr.total > self._limits.kill_output_bytes:
            self.verdict = "output_limit"

    def _read(self, fd: int) -> bool:
        data = os.read(fd, _CHUNK)
        self._open[fd].write(data)
        if not data:
            self._poll.unregister(fd)
            del self._open[fd]
        return bool(data)

    def _look(self):
        pids = process_tree.descendants(os.getpid())
        self.cpu_s = max(self.cpu_s, process_tree.cpu_s(pids))
        limits = self._limits
        files, size = measure(self._box, limits.scratch_files)
        if self.cpu_s >= limits.cpu_s:
            self.verdict = "cpu_limit"
        elif len(pids) > limits.processes + 2:
            self._stop("signal", f"more than {limits.processes} processes")
        elif files > limits.scratch_files or size > limits.scratch_bytes:
            self._stop("signal", f"{files} files of {size} bytes")
        elif self._too_much_memory(pids):
            self._stop("memory_limit", f"more than {limits.memory_mb} MiB in use")

    def _too_much_memory(self, pids) -> bool:
        limit = self._memory_mb
        return process_tree.resident_mb(pids) > limit and process_tree.proportional_mb(pids) > limit

    def _stop(self, verdict: str, note: str):
        self.verdict, self.note = verdict, f"killed: {note}"

    def _end(self):
        """Kills whatever is left, takes in the last output: all writers are dead, so the pipes do end."""
        self.wall_s = time.monotonic() - self._started
        if self.verdict:
            self.cpu_s = max(self.cpu_s, process_tree.cpu_s(process_tree.descendants(os.getpid())))
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        reaped = self._group.kill(self._pid)
        self.status = next(status for pid, status, _ in reaped if pid == self._pid)
        self.cpu_s = max(self.cpu_s, sum(usage.ru_utime + usage.ru_stime for _, _, usage in reaped))
        self.max_rss_kb = max(usage.ru_maxrss for _, _, usage in reaped)
        for fd in list(self._open):
            os.set_blocking(fd, False)
            with contextlib.suppress(BlockingIOError):
                while self._read(fd):
                    pass
