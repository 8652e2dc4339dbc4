"""Watching one running snippet: its output, its clock, its whole process tree."""

import contextlib
import os
import select
import signal
import time

from sandbox_service import limits as bounds
from sandbox_service import process_tree
from sandbox_service.output import OutputBuffer

_TICK_S = 0.05  # between two looks at the process tree
_CHUNK = 64 << 10


class Aborted(Exception):
    """The service is gone: nobody waits for the answer."""


class ChildAlarm:
    """A descriptor that becomes readable whenever a child of this process changes its state."""

    def __init__(self):
        self.fd, self._signalled = os.pipe()
        for end in (self.fd, self._signalled):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._signalled, warn_on_full_buffer=False)

    def clear(self):
        """Forgets the signals so far."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.fd, 4096):
                pass


class Supervision:
    """From the start of a snippet until nothing of it is left.

    Attributes:
      stdout, stderr: what it wrote.
      verdict: the outcome if we ended it; None if it ended by itself.
      note: why we ended it, where the outcome does not say so.
      status: its wait status.
      cpu_s, max_rss: seconds of CPU time of all its processes; largest resident size (unit of the platform).
    """

    def __init__(
        self, pid: int, pipes: tuple[int, int], limits: bounds.Limits, alarm: ChildAlarm, control: int
    ):
        self._pid, self._limits, self._alarm, self._control = pid, limits, alarm, control
        self.stdout, self.stderr = OutputBuffer(limits.output_bytes), OutputBuffer(limits.output_bytes)
        self._open = dict(zip(pipes, (self.stdout, self.stderr), strict=True))
        self._poll = select.poll()
        for fd in (*pipes, alarm.fd, control):
            self._poll.register(fd, select.POLLIN)
        self.verdict: str | None = None
        self.note = ""
        self.status: int | None = None
        self.cpu_s, self.max_rss = 0.0, 0

    def run(self):
        """Returns when the snippet has ended or was ended, and every process of it is dead.

        Raises:
          Aborted: the control descriptor was closed.
        """
        deadline = time.monotonic() + self._limits.wall_s
        tick = time.monotonic() + _TICK_S
        while self.status is None and self.verdict is None:
            now = time.monotonic()
            if now >= deadline:
                self.verdict = "timeout"
            elif now >= tick:
                self._look_at_tree()
                tick = time.monotonic() + _TICK_S
            else:
                self._wait(min(tick, deadline) - now)
        self._end()

    def _wait(self, seconds: float):
        for fd, _ in self._poll.poll(seconds * 1000 + 1):
            if fd == self._control and not os.read(fd, 1):
                self._end()
                raise Aborted
            if fd == self._alarm.fd:
                self._alarm.clear()
                self._account(process_tree.reap())
            elif fd in self._open:
                self._read(fd)
        if self.stdout.total + self.stderr.total > bounds.KILL_OUTPUT_BYTES:
            self.verdict = "output_limit"

    def _read(self, fd: int) -> bool:
        data = os.read(fd, _CHUNK)
        self._open[fd].write(data)
        if not data:
            self._poll.unregister(fd)
            del self._open[fd]
        return bool(data)

    def _account(self, ended):
        for pid, status, usage in ended:
            self.cpu_s += usage.ru_utime + usage.ru_stime
            self.max_rss = max(self.max_rss, usage.ru_maxrss)
            if pid == self._pid:
                self.status = status

    def _look_at_tree(self):
        pids = process_tree.descendants(os.getpid()) if process_tree.LINUX else [self._pid]
        limit = self._limits.memory_mb
        if len(pids) > bounds.PROCESSES:
            self.verdict, self.note = "signal", f"killed: more than {bounds.PROCESSES} processes"
        elif process_tree.memory_mb(pids) > limit and process_tree.proportional_memory_mb(pids) > limit:
            self.verdict, self.note = "memory_limit", f"killed: more than {limit} MiB in use"

    def _end(self):
        """Kills whatever is left, takes in the last output: all writers are dead, so the pipes do end."""
        process_tree.kill_group(self._pid)
        if process_tree.LINUX:
            self._account(process_tree.kill_all_descendants())
        while self.status is None:
            self._account([os.wait4(self._pid, 0)])
        for fd in list(self._open):
            os.set_blocking(fd, False)
            with contextlib.suppress(BlockingIOError):
                while self._read(fd):
                    pass
