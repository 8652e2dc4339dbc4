"""Control groups: a cap on the memory and the processes of a lane as a whole, in version 1 and in version 2.

A lane lives in its group and its snippets inherit it, because moving a process costs more than running one.
"""

import contextlib
import os
import time
from pathlib import Path

from sandbox_service.server.instance import PREFIX, is_stale

_ROOT = Path("/sys/fs/cgroup")
_LANE_MB = 96  # of the lane itself, and of what a fork copies
_LANE_PROCESSES = 4


class Group:
    """The control group of one lane (version 1: one directory for each controller)."""

    def __init__(self, version: str, memory: Path, processes: Path):
        self._version, self._memory, self._processes = version, memory, processes
        self._limits = (0, 0)
        for folder in {memory, processes}:
            folder.mkdir(parents=True, exist_ok=True)

    def add(self, pid: int):
        """Moves a process into the group."""
        for folder in {self._memory, self._processes}:
            (folder / "cgroup.procs").write_text(str(pid))

    def limit(self, memory_mb: int, processes: int):
        """Sets the limits of the next run, MiB and a count."""
        if self._limits == (memory_mb, processes):
            return
        (self._processes / "pids.max").write_text(str(processes + _LANE_PROCESSES))
        size = str((memory_mb + _LANE_MB) << 20)
        if self._version == "v2":
            (self._memory / "memory.max").write_text(size)
            with contextlib.suppress(FileNotFoundError):  # no swap here
                (self._memory / "memory.swap.max").write_text("0")
        else:
            (self._memory / "memory.limit_in_bytes").write_text(size)
        self._limits = memory_mb, processes

    def oom_kills(self) -> int:
        """Processes of the group that the kernel has killed for want of memory."""
        name = "memory.events" if self._version == "v2" else "memory.oom_control"
        text = (self._memory / name).read_text()
        return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)

    def remove(self):
        """Removes the group; its processes must be dead."""
        for folder in {self._memory, self._processes}:
            _remove(folder)


def _remove(folder: Path, patience_s: float = 2.0):
    deadline = time.monotonic() + patience_s
    while True:
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:  # busy: the kernel takes a moment after the last process
            if time.monotonic() > deadline:
                return
            time.sleep(0.005)


class Groups:
    """The control groups of a service: one above, and one below it for each lane.

    Attributes:
      version: "v1" or "v2".
    """

    def __init__(self, version: str, tops: tuple[Path, Path]):
        self.version, self._tops = version, tops
        self._all: list[Group] = []

    def group(self, lane: int) -> Group:
        """A new group for a lane."""
        self._all.append(Group(self.version, *(top / f"lane-{lane}" for top in self._tops)))
        return self._all[-1]

    def remove(self):
        """Removes all groups."""
        for group in self._all:
            group.remove()
        for top in set(self._tops):
            _remove(top)


def open_groups(name: str, root: Path = _ROOT) -> tuple[Groups | None, str]:
    """Control groups of a service called `name`, or None and why there are none."""
    opened, reasons = None, []
    for version, parents in (("v2", _parents_v2(root)), ("v1", _parents_v1(root))):
        if opened is None and parents:
            tops = (parents[0] / name, parents[1] / name)
            try:
                opened = _open(version, tops)
            except OSError as error:
                reasons.append(f"{version}: {error.strerror or error} ({error.filename})")
                for top in set(tops):
                    _remove(top, 0)
    return opened, "; ".join(reasons) or "no memory and pids controllers are mounted"


def _open(version: str, tops: tuple[Path, Path]) -> Groups:
    for top in set(tops):
        _sweep(top.parent)
        top.mkdir(exist_ok=True)
    if version == "v2":
        (tops[0] / "cgroup.subtree_control").write_text("+memory +pids")
    probe = Group(version, *(top / "probe" for top in tops))
    try:
        probe.limit(64, 8)
        probe.oom_kills()
    finally:
        probe.remove()
    return Groups(version, tops)


def _parents_v1(root: Path) -> tuple[Path, Path] | None:
    parents = root / "memory", root / "pids"
    return parents if all((parent / "cgroup.procs").exists() for parent in parents) else None


def _parents_v2(root: Path) -> tuple[Path, Path] | None:
    """Where the controllers can be passed on: at the root, or in the group that we were given."""
    own = next((line[3:] for line in _own_groups() if line.startswith("0::")), "/")
    for parent in (root, root / own.strip().lstrip("/")):
        with contextlib.suppress(OSError):
            if {"memory", "pids"} <= set((parent / "cgroup.subtree_control").read_text().split()):
                return parent, parent
            if {"memory", "pids"} <= set((parent / "cgroup.controllers").read_text().split()):
                (parent / "cgroup.subtree_control").write_text("+memory +pids")
                return parent, parent
    return None


def _own_groups() -> list[str]:
    with contextlib.suppress(FileNotFoundError), open("/proc/self/cgroup") as file:
        return file.read().splitlines()
    return []


def _sweep(parent: Path):
    """Removes the empty groups of services that are gone."""
    for top in parent.glob(f"{PREFIX}*"):
        if is_stale(top.name):
            for folder in (*top.glob("lane-*"), top):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
