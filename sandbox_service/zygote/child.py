"""From a fork of the lane to a snippet: namespaces, limits, another identity, and no way back."""

import dataclasses
import math
import os
import resource
import signal

from sandbox_service.isolation import Mechanisms
from sandbox_service.kernel import jail_root, landlock, libc, seccomp, user_namespace
from sandbox_service.limits import Limits
from sandbox_service.zygote.probe import flags_of

_ADDRESS_SPACE_SLACK = 1 << 30  # bytes of libraries and of reserved, never touched memory
_PAGE = resource.getpagesize()
_OF_EVERY_CHILD = ("mount", "net", "ipc", "uts")  # the lane has made the PID namespace already
_READABLE_PROC = ("/proc/cpuinfo", "/proc/meminfo", "/proc/stat")


@dataclasses.dataclass(frozen=True)
class Confinement:
    """What every snippet of a lane is confined by.

    Attributes:
      mechanisms: what works here.
      uid: the lane's own user id; None: snippets keep the service's.
      filter: program of the system call filter; empty: none.
    """

    mechanisms: Mechanisms
    uid: int | None
    filter: bytes


def _lower(which: int, soft: int, hard: int):
    """Sets a limit, below the hard one that we may live under ourselves."""
    ceiling = resource.getrlimit(which)[1]
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(which, (soft, hard))


def _limit(limits: Limits):
    """Memory counts from what the fork has already."""
    with open("/proc/self/statm") as file:
        pages = [int(number) for number in file.read().split()]
    memory = limits.memory_mb << 20
    mapped, private = pages[0] * _PAGE + memory + _ADDRESS_SPACE_SLACK, pages[5] * _PAGE + memory
    cpu_s = math.ceil(limits.cpu_s)
    for which, soft, hard in (
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
        (resource.RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files, limits.open_files),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_DATA, private, private),
        (resource.RLIMIT_AS, mapped, mapped),
    ):
        _lower(which, soft, hard)


def _change_identity(uid: int | None, nested_user: bool, processes: int):
    if nested_user:
        user_namespace.enter()
    libc.bound_capabilities()
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if uid is not None or nested_user:  # counted by user, so only of use with one of its own
        _lower(resource.RLIMIT_NPROC, processes, processes)
    libc.drop_capabilities()
    libc.prctl(libc.PR_SET_DUMPABLE, 1)  # else /proc/self would be root's
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)


def _file_rules(m: Mechanisms, box: str) -> dict[str, int]:
    if m.jail:
        return {"/": landlock.READ, "/dev": landlock.DEVICES, box: landlock.EVERYTHING}
    rules = {
        path: landlock.READ for path in (*jail_root.visible_paths(), *jail_root.SYSTEM_FILES, "/proc/self")
    }
    rules |= {path: landlock.READ_FILES for path in _READABLE_PROC}
    rules |= {path: landlock.DEVICES for path in jail_root.DEVICES}
    return {**rules, box: landlock.EVERYTHING}


def confine(c: Confinement, limits: Limits, box: str, stdio: tuple[int, int, int], spare: int):
    """Confines this process, for good.

    Args:
      c: the lane's confinement.
      limits: of this run.
      box: scratch directory, becomes the working directory.
      stdio: descriptors for stdin, stdout and stderr, all above 2.
      spare: a descriptor that stays open; of the others, only 0 to 2 do.

    Raises:
      OSError: the kernel refused something that worked when it was probed.
    """
    m = c.mechanisms
    os.setsid()
    libc.unshare(flags_of(name for name in _OF_EVERY_CHILD if name in m.namespaces))
    if m.jail:
        jail_root.mount_proc("/proc")
    os.chdir(box)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # before the lane, which shares its cgroup
    for target, source in enumerate(stdio):
        os.dup2(source, target)
    libc.close_all_but(spare)
    _limit(limits)
    _change_identity(c.uid, m.nested_user, limits.processes)
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    if m.landlock:
        landlock.restrict(_file_rules(m, box), m.landlock)
    if c.filter:
        seccomp.load(c.filter)
