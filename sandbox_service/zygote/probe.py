"""Finding out what isolates here: by doing it, each in its own process, and never by a version number."""

import os
import socket
import sys

from sandbox_service.isolation import Mechanisms
from sandbox_service.kernel import jail_root, landlock, libc, seccomp, user_namespace

NAMESPACES = {
    "mount": libc.CLONE_NEWNS,
    "pid": libc.CLONE_NEWPID,
    "net": libc.CLONE_NEWNET,
    "ipc": libc.CLONE_NEWIPC,
    "uts": libc.CLONE_NEWUTS,
}
ALL = (*NAMESPACES, "jail", "own_uid", "nested_user", "seccomp", "landlock")


def attempt(action) -> str:
    """Does something in a child process; returns why it failed, or nothing."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except Exception as error:
            os.write(writer, (str(error) or repr(error)).encode()[:1000])
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        reason = pipe.read().decode("utf-8", "replace")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return reason or (f"ended by signal {-status}" if status else "")


def flags_of(names) -> int:
    """The clone flags of namespaces."""
    return sum(NAMESPACES[name] for name in names)


def enter(m: Mechanisms):
    """Enters new namespaces of every kind that works, for the template to own."""
    _enter(flags_of(m.namespaces), m.user_namespace)


def _enter(flags: int, user: bool):
    if user:
        user_namespace.enter(flags)
    else:
        libc.unshare(flags)


def _try_jail(flags: int, user: bool, mountpoint: str):
    _enter(flags, user)
    if reason := attempt(lambda: jail_root.enter(mountpoint, 0)):
        raise OSError(reason)


def _try_nested_user(flags: int):
    user_namespace.enter(flags)
    if reason := attempt(user_namespace.enter):
        raise OSError(reason)


def _try_uid(uid: int, jail: bool):
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if not jail:
        for path in (sys.prefix, sys.base_prefix):
            try:
                os.listdir(path)
            except PermissionError:
                raise OSError(f"{path}, where the interpreter is, can't be read by other users") from None


def _try_seccomp():
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.load(seccomp.program(libc.MACHINE))
    try:
        socket.socket()
    except PermissionError:
        return
    raise OSError("the filter has no effect")


def _try_landlock():
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict({"/usr": landlock.READ}, landlock.abi())
    try:
        os.listdir("/")
    except PermissionError:
        return
    raise OSError("Landlock has no effect")


def probe(mountpoint: str, uid: int) -> Mechanisms:
    """What works here.

    Args:
      mountpoint: an empty directory.
      uid: a user id that is free to use if we are root.
    """
    missing = {name: attempt(lambda flag=flag: libc.unshare(flag)) for name, flag in NAMESPACES.items()}
    user = bool(missing["mount"]) and not attempt(user_namespace.enter)
    if user:
        missing = {name: attempt(lambda f=flag: user_namespace.enter(f)) for name, flag in NAMESPACES.items()}
    works = tuple(name for name, reason in missing.items() if not reason)
    flags = flags_of(works)
    if {"mount", "pid"} <= set(works):
        missing["jail"] = attempt(lambda: _try_jail(flags, user, mountpoint))
    else:
        missing["jail"] = "needs a mount and a PID namespace"
    jail = not missing["jail"]
    missing["own_uid"] = (
        "only root can give one" if user or os.geteuid() else attempt(lambda: _try_uid(uid, jail))
    )
    missing["nested_user"] = attempt(lambda: _try_nested_user(flags)) if user else "not in a user namespace"
    missing["seccomp"] = attempt(_try_seccomp)
    missing["landlock"] = attempt(_try_landlock)
    return Mechanisms(
        user_namespace=user,
        # Without a process list of their own in /proc, processes of other PID namespaces would be seen there.
        namespaces=works if jail else tuple(name for name in works if name in ("net", "ipc", "uts")),
        jail=jail,
        own_uid=not missing["own_uid"],
        nested_user=not missing["nested_user"],
        seccomp=not missing["seccomp"],
        landlock=0 if missing["landlock"] else landlock.abi(),
        missing={name: reason for name, reason in missing.items() if reason},
    )
