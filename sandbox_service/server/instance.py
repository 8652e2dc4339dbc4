"""What is a running service's own on a machine that may have several: user ids, a name, a directory.

A service holds its number by a listening abstract socket, which the kernel takes back whenever the service
ends. So what carries a number that nobody holds is stale, and is swept by the next service to start.
"""

import contextlib
import errno
import os
import random
import shutil
import signal
import socket
import tempfile
from pathlib import Path

_FIRST_UID = 0x30000000  # above what people, systems and user namespaces use
_UIDS = 256  # of one service
_NUMBERS = 1 << 16
PREFIX = "sandbox-service-"


class Instance:
    """A number that no other running service has, and what follows from it."""

    def __init__(self):
        self._lock = None
        while self._lock is None:
            self.number = random.SystemRandom().randrange(_NUMBERS)
            self._lock = _hold(self.number)
        self.name = f"{PREFIX}{self.number}"
        self.folder = tempfile.mkdtemp(prefix=f"{self.name}-")
        os.chmod(self.folder, 0o711)  # lanes without a jail have their scratch directories in it

    def uid(self, lane: int) -> int:
        """The user id of a lane's snippets, if we are root."""
        return _FIRST_UID + self.number * _UIDS + lane

    def close(self):
        """Removes the directory and gives the number back."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


def _hold(number: int) -> socket.socket | None:
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(f"\0{PREFIX}{number}")
    except OSError as error:
        lock.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return lock


def is_stale(name: str) -> bool:
    """Whether a name with PREFIX belongs to a service that is gone."""
    number = name.removeprefix(PREFIX).partition("-")[0]
    if not number.isdecimal() or (lock := _hold(int(number))) is None:
        return False
    lock.close()
    return True


def sweep():
    """Kills processes and removes directories that services left which are gone."""
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and _is_stray(entry.stat().st_uid):
                os.kill(int(entry.name), signal.SIGKILL)
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        if is_stale(folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def _is_stray(uid: int) -> bool:
    number = (uid - _FIRST_UID) // _UIDS
    return 0 <= number < _NUMBERS and is_stale(f"{PREFIX}{number}")
