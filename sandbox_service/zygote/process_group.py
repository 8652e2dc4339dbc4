"""Everything that a snippet started, as one thing that can be killed."""

import contextlib
import os
import signal

from sandbox_service.kernel import libc
from sandbox_service.zygote import process_tree

_INIT = "/bin/cat"  # reads a pipe that only the lane can write to, so it ends with the lane


class PidNamespace:
    """A PID namespace for one run. Its first process does nothing; at that one's end the kernel kills all."""

    def __init__(self, own_namespace: int):
        self._own_namespace = own_namespace

    def open(self):
        """From here on, children of this process are born in a new namespace."""
        libc.unshare(libc.CLONE_NEWPID)
        reader, self._lifeline = os.pipe()
        try:
            actions = [(os.POSIX_SPAWN_DUP2, reader, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
            self._init = os.posix_spawn(_INIT, [_INIT], {}, file_actions=actions)
        except OSError:
            os.close(self._lifeline)
            raise
        finally:
            os.close(reader)

    def close(self):
        """From here on, children are born where the lane is."""
        libc.setns(self._own_namespace, libc.CLONE_NEWPID)

    def kill(self, leader: int | None) -> list[tuple]:
        """Kills everything; returns (pid, wait status, resource usage) of the leader, if there is one."""
        os.close(self._lifeline)
        os.kill(self._init, signal.SIGKILL)
        ended = []
        if leader is not None:
            os.kill(leader, signal.SIGKILL)
            ended = [os.wait4(leader, 0)]  # first: a namespace ends only when nothing in it is left to reap
        os.waitpid(self._init, 0)
        return ended


class Swept:
    """Without a namespace: the session, what has the lane's user id, and whatever else is below the lane."""

    def __init__(self, uid: int | None):
        self._uid = uid

    def open(self):
        """Nothing to prepare."""

    def close(self):
        """Nothing to undo."""

    def kill(self, leader: int | None) -> list[tuple]:
        """Kills everything; returns (pid, wait status, resource usage) of all of it."""
        if leader is not None:
            process_tree.kill_group(leader)
        if self._uid is not None and process_tree.descendants(os.getpid()) != [leader]:
            sweep_uid(self._uid)
        return process_tree.kill_all_descendants()


def sweep_uid(uid: int):
    """Kills every process of a user id in one stroke, which no amount of forking outruns."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
