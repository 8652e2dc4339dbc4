"""A lane: a fork of the template that runs one snippet at a time for the service.

Jobs come in on a socket and answers go out on it, one JSON object a line. The lane is single-threaded and
adopts every orphan of its snippet, so what it finds below itself belongs to that snippet and to no other.
When the socket is closed (the service went away, in whatever manner), it kills the snippet and ends.
"""

import contextlib
import json
import os
import signal
import socket

from sandbox_service.answer import failed
from sandbox_service.isolation import Mechanisms
from sandbox_service.kernel import jail_root, libc, seccomp
from sandbox_service.zygote import box
from sandbox_service.zygote.child import Confinement
from sandbox_service.zygote.execute import modules_of_ours
from sandbox_service.zygote.process_group import PidNamespace, Swept, sweep_uid
from sandbox_service.zygote.process_tree import adopt_orphans
from sandbox_service.zygote.runner import Place, run_snippet
from sandbox_service.zygote.supervisor import Aborted


def _jobs(channel: socket.socket):
    """Yields the jobs; each comes after the answer to the last, so a run meets only the end of the stream."""
    pending = bytearray()
    while data := channel.recv(1 << 20):
        pending += data
        while (end := pending.find(b"\n")) >= 0:
            yield json.loads(pending[:end])
            del pending[: end + 1]


def _serve(channel: socket.socket, place: Place):
    for job in _jobs(channel):
        try:
            answer = run_snippet(job, place)
        except OSError as error:
            answer = failed("infra_error", f"the sandbox could not run this: {error}")
        channel.sendall(json.dumps(answer).encode() + b"\n")


def _place(m: Mechanisms, uid: int | None, workdir: str, control: int) -> Place:
    program = seccomp.program(libc.MACHINE) if m.seccomp else b""
    if m.pid_namespace:
        group = PidNamespace(os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC))
    else:
        group = Swept(uid)
    return Place(Confinement(m, uid, program), group, workdir, control)


def run_lane(channel: socket.socket, m: Mechanisms, uid: int, workdir: str):
    """Serves jobs until the channel is closed.

    Args:
      channel: stream socket to the service.
      m: what works here.
      uid: a user id for the snippets of this lane, used if we are root.
      workdir: this lane's own directory.
    """
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    adopt_orphans()
    if m.jail:
        libc.unshare(libc.CLONE_NEWNS)  # each lane mounts its own scratch directory
    modules_of_ours(), jail_root.visible_paths()  # found once, for all children
    own_uid = uid if m.own_uid else None
    place = _place(m, own_uid, workdir, channel.fileno())
    if own_uid is not None and not m.pid_namespace:
        sweep_uid(own_uid)  # what an earlier lane of this user id may have left
    try:
        with contextlib.suppress(Aborted, ConnectionError):
            _serve(channel, place)
    finally:
        if not m.jail:
            box.remove(workdir)
