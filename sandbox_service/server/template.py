"""The service's end of a template process: starting it, and having lanes forked from it."""

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

from sandbox_service.isolation import Mechanisms
from sandbox_service.zygote.environment import INTERPRETER_FLAGS, environment

_START_S = 120.0
_FORK_S = 20.0
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])
_MAIN = """
import sys
sys.path.insert(0, {parent!r})
from sandbox_service.zygote.template import main
sys.path.remove({parent!r})
sys.orig_argv[1:] = ["main.py"]
main({control})
"""


class TemplateFailed(Exception):
    """A template process could not be started or has died."""


class Template:
    """One template process, started when it is needed and again after it died.

    Args:
      profile: what it imports.
      mountpoint: an empty directory for it.
      uid: a user id for its probes.
      layers: whether to isolate.
    """

    def __init__(self, profile: str, mountpoint: str, uid: int, layers: bool):
        self._settings = {"profile": profile, "mountpoint": mountpoint, "uid": uid, "layers": layers}
        self._process: subprocess.Popen | None = None
        self._lock = asyncio.Lock()
        self.mechanisms: Mechanisms | None = None
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """Process id, while it lives."""
        return self._process.pid if self._process and self._process.poll() is None else None

    async def start(self) -> Mechanisms:
        """Starts the process; returns what works here.

        Raises:
          TemplateFailed: it did not come up; the service's log says why.
        """
        self.close()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        main = _MAIN.format(parent=_PACKAGE_PARENT, control=theirs.fileno())
        # Not from a thread: the process is bound to the life of the thread that starts it.
        self._process = subprocess.Popen(
            [sys.executable, *INTERPRETER_FLAGS, "-c", main],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            cwd="/",
            env=environment("/box"),
            start_new_session=True,
        )
        theirs.close()
        self.starts += 1
        self._control.settimeout(_START_S)
        self._control.send(json.dumps(self._settings).encode())
        message = await self._receive()
        fields = json.loads(message)
        self.mechanisms = Mechanisms(**{**fields, "namespaces": tuple(fields["namespaces"])})
        self._control.settimeout(_FORK_S)
        return self.mechanisms

    async def fork_lane(self, channel: socket.socket, uid: int, workdir: str) -> int:
        """Has a lane forked that serves `channel`; returns its pidfd.

        Raises:
          TemplateFailed: the process is gone and can't be started again.
        """
        async with self._lock:
            if self._process is None or self._process.poll() is not None:
                await self.start()
            request = json.dumps({"uid": uid, "workdir": workdir}).encode()
            try:
                socket.send_fds(self._control, [request], [channel.fileno()])
                return (await asyncio.to_thread(socket.recv_fds, self._control, 16, 1))[1][0]
            except (OSError, IndexError) as error:
                self.close()
                raise TemplateFailed(f"the template process forks no lane: {error!r}") from error

    async def _receive(self) -> bytes:
        try:
            message = await asyncio.to_thread(self._control.recv, 1 << 16)
        except OSError as error:
            message, reason = b"", repr(error)
        else:
            reason = "it ended"
        if not message:
            self.close()
            raise TemplateFailed(f"the template process did not come up: {reason}")
        return message

    def close(self):
        """Ends the process, and with it all of its lanes."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._control.close()


def host_pid(pidfd: int) -> int:
    """The process id here of a process in some other PID namespace."""
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pid:"))
