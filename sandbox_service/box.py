"""The scratch directory of one run."""

import base64
import contextlib
import os
import shutil
import stat
import subprocess
import tempfile

from sandbox_service.limits import FETCH_BYTES


@contextlib.contextmanager
def scratch(parent: str):
    """A fresh directory below `parent`, gone afterwards whatever the snippet left in it."""
    box = tempfile.mkdtemp(prefix="box-", dir=parent)
    try:
        yield box
    finally:
        remove(box)


def remove(path: str):
    """Removes a tree, also one with unreadable directories or too deep for `shutil.rmtree`."""
    try:
        shutil.rmtree(path)
    except (OSError, RecursionError):
        subprocess.run(["chmod", "-R", "u+rwx", path], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", path], check=True, stdout=subprocess.DEVNULL)


def fetch(box: str, names: list[str]) -> dict[str, str]:
    """Base64 of those of the named files that exist, each cut at FETCH_BYTES.

    Names are plain (no directories); what is not a regular file, links among them, counts as absent.
    """
    found = {}
    for name in names:
        with contextlib.suppress(OSError):
            descriptor = os.open(os.path.join(box, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    found[name] = base64.b64encode(file.read(FETCH_BYTES)).decode()
    return found
