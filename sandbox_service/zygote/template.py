"""The template: the process that all lanes are forked from, with everything imported, in a jail of its own.

Run by the service in a new interpreter, with an environment that has never held a secret. It probes what
isolates here, enters namespaces, imports, and then forks a lane whenever it is sent a socket. It is the first
process of a PID namespace where one can be had, so its death is that of all lanes and snippets.
"""

import dataclasses
import json
import os
import signal
import socket
import sys

from sandbox_service.isolation import Mechanisms
from sandbox_service.kernel import jail_root, libc, user_namespace
from sandbox_service.zygote import probe
from sandbox_service.zygote.lane import run_lane
from sandbox_service.zygote.process_tree import adopt_orphans
from sandbox_service.zygote.warm import warm


def main(control_fd: int):
    """Serves the control socket until it is closed.

    Its first message: `profile`, `mountpoint` (an empty directory), `uid` (one that is free), `layers`.
    """
    os.umask(0o022)
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    control = socket.socket(fileno=control_fd)
    settings = json.loads(control.recv(1 << 16))
    if settings["layers"]:
        mechanisms = probe.probe(settings["mountpoint"], settings["uid"])
    else:
        mechanisms = Mechanisms(missing=dict.fromkeys(probe.ALL, "turned off"))
    probe.enter(mechanisms)
    if mechanisms.pid_namespace:
        _stay_outside(control)
    adopt_orphans()
    if mechanisms.jail:
        uid = user_namespace.INSIDE_ID if mechanisms.user_namespace else settings["uid"]
        jail_root.enter(settings["mountpoint"], uid)
    warm(settings["profile"])
    control.send(json.dumps(dataclasses.asdict(mechanisms)).encode())
    _fork_lanes(control, mechanisms)


def _stay_outside(control: socket.socket):
    """Goes on as the first process in the new PID namespace; what stays outside only waits for its end."""
    pid = os.fork()
    if pid == 0:
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    control.close()
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)


def _fork_lanes(control: socket.socket, mechanisms):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps for us
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not message:
            return
        request, channel = json.loads(message), socket.socket(fileno=descriptors[0])
        pid = os.fork()
        if pid == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                run_lane(channel, mechanisms, request["uid"], request["workdir"])
            except BaseException as error:
                print(f"a lane failed: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(0)
        channel.close()
        pidfd = os.pidfd_open(pid)
        socket.send_fds(control, [b"lane"], [pidfd])
        os.close(pidfd)
