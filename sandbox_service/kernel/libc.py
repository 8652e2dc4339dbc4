"""System calls through ctypes, with errors raised as OSError."""

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47

_CLOSE_RANGE = 436
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAP_VERSION_3 = 0x20080522

MACHINE = os.uname().machine
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def check(result: int, what: str) -> int:
    """The result of a C function, unless it says -1.

    Raises:
      OSError: with `errno` and the name of what failed.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(name: str, number: int, *arguments) -> int:
    """Makes a system call; integers are passed as longs, other arguments as ctypes does."""
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return check(_libc.syscall(ctypes.c_long(number), *values), name)


def prctl(option: int, *arguments, what: str = "prctl") -> int:
    """Changes something of this process."""
    values = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in arguments]
    values += [ctypes.c_ulong(0)] * (4 - len(values))
    return check(_libc.prctl(option, *values), f"{what}({option})")


def unshare(flags: int):
    """Enters new namespaces."""
    if flags:  # containers refuse the call even if it would do nothing
        check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, flags: int):
    """Enters a namespace."""
    check(_libc.setns(descriptor, flags), "setns")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = ""):
    """Mounts a file system."""
    arguments = (
        source.encode(),
        target.encode(),
        kind and kind.encode(),
        ctypes.c_ulong(flags),
        data.encode(),
    )
    check(_libc.mount(*arguments), f"mount {kind or source} on {target}")


def detach(target: str):
    """Takes a mount away, even while it is in use."""
    check(_libc.umount2(target.encode(), 2), f"umount {target}")


def pivot_root(new: str, old: str):
    """Makes another mount the root."""
    syscall("pivot_root", _PIVOT_ROOT[MACHINE], ctypes.c_char_p(new.encode()), ctypes.c_char_p(old.encode()))


def close_all_but(spared: int):
    """Closes every descriptor above 2 but one."""
    for first, last in ((3, spared - 1), (spared + 1, 0x7FFFFFFF)):
        if first <= last:
            syscall("close_range", _CLOSE_RANGE, first, last, 0)


def bound_capabilities():
    """Makes it impossible for this process to gain a capability by executing something."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    for capability in range(last + 1):
        _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)  # refused without CAP_SETPCAP


def drop_capabilities():
    """Gives up every capability that this process has."""
    prctl(PR_CAP_AMBIENT, 4)
    header = (ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0)
    syscall("capset", _CAPSET[MACHINE], header, (ctypes.c_uint32 * 6)())
