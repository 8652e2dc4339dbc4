"""Finding and killing everything that a snippet started, whatever session it moved to.

On Linux the calling process adopts the orphans of its descendants (PR_SET_CHILD_SUBREAPER), so every process
of a run stays below it and can be found in /proc. Elsewhere only the run's process group is reached.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_PATIENCE_S = 10.0
_GONE = (FileNotFoundError, ProcessLookupError)

LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True)


def tracks_descendants() -> bool:
    """Whether this kernel lists the children of a process."""
    return LINUX and os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def _prctl(option: int, value: int):
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def adopt_orphans():
    """Makes this process the parent of its descendants' orphans (Linux only)."""
    if LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent():
    """Has this process killed when its parent dies (Linux only)."""
    if LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


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


def memory_mb(pids) -> float:
    """MiB resident, summed; an upper bound, since what several processes share counts for each."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(*_GONE), open(f"/proc/{pid}/statm") as statm:
            pages += int(statm.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def proportional_memory_mb(pids) -> float:
    """MiB that the processes hold, each shared page split among its users; slower than `memory_mb`."""
    kilobytes = 0
    for pid in pids:
        with contextlib.suppress(*_GONE), open(f"/proc/{pid}/smaps_rollup") as rollup:
            kilobytes += sum(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    return kilobytes / 1024


def kill(pids):
    """Sends SIGKILL to each; those that are gone already are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_group(pgid: int):
    """Kills a process group in one stroke, which no amount of forking outruns.

    macOS answers EPERM for a group that holds only zombies.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
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
