"""Finding, measuring and killing everything below a process.

The calling process adopts the orphans of its descendants (PR_SET_CHILD_SUBREAPER), so whatever session a
process of a run moved to, it stays below its lane and can be found in /proc.
"""

import contextlib
import os
import signal
import time

from sandbox_service.kernel import libc

_KILL_PATIENCE_S = 10.0
_GONE = (FileNotFoundError, ProcessLookupError)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CPU_FIELDS = slice(11, 15)  # of /proc/PID/stat after the name: utime, stime, cutime, cstime


def adopt_orphans():
    """Makes this process the parent of its descendants' orphans."""
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)


def children(pid: int) -> list[int]:
    """Process ids of the living and the unreaped children of a process."""
    found = []
    with contextlib.suppress(*_GONE):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(*_GONE), open(f"/proc/{pid}/task/{task}/children") as listing:
                found += map(int, listing.read().split())
    return found


def descendants(pid: int) -> list[int]:
    """Process ids of everything below a process, parents first."""
    found = children(pid)
    for child in found:  # grows while it is walked
        found += children(child)
    return found


def resident_mb(pids) -> float:
    """MiB resident, summed; an upper bound, since what several processes share counts for each."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(*_GONE), open(f"/proc/{pid}/statm") as statm:
            pages += int(statm.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def proportional_mb(pids) -> float:
    """MiB that the processes hold, each shared page split among its users; slower than `resident_mb`."""
    kilobytes = 0
    for pid in pids:
        with contextlib.suppress(*_GONE, PermissionError), open(f"/proc/{pid}/smaps_rollup") as rollup:
            kilobytes += sum(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    return kilobytes / 1024


def cpu_s(pids) -> float:
    """Seconds of CPU time of the processes and of their children that are reaped already."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(*_GONE), open(f"/proc/{pid}/stat") as stat:
            ticks += sum(map(int, stat.read().rpartition(")")[2].split()[_CPU_FIELDS]))
    return ticks / _TICKS_PER_S


def kill(pids):
    """Sends SIGKILL to each; those that are gone already are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_group(pgid: int):
    """Kills a process group in one stroke, which no amount of forking outruns."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pgid, signal.SIGKILL)


def reap() -> list[tuple]:
    """Collects every child that has ended: (pid, wait status, resource usage) each."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while (child := os.wait4(-1, os.WNOHANG))[0]:
            ended.append(child)
    return ended


def kill_all_descendants() -> list[tuple]:
    """Kills and reaps everything below this process; returns what `reap` collected.

    Raises:
      RuntimeError: something is still alive after many rounds.
    """
    ended = reap()
    deadline = time.monotonic() + _KILL_PATIENCE_S
    while alive := descendants(os.getpid()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {alive} of a snippet cannot be killed")
        kill(alive)
        time.sleep(0.001)
        ended += reap()
    return ended
