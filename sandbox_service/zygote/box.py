"""The scratch directory of one run."""

import base64
import contextlib
import os
import shutil
import stat
import subprocess
import tempfile

from sandbox_service.kernel import jail_root, libc
from sandbox_service.limits import FETCH_BYTES, Limits


@contextlib.contextmanager
def in_memory(uid: int, limits: Limits):
    """A fresh file system at BOX in the lane's own mount namespace, gone afterwards."""
    jail_root.mount_box(uid, limits.scratch_bytes, limits.scratch_files)
    try:
        yield jail_root.BOX
    finally:
        libc.detach(jail_root.BOX)


@contextlib.contextmanager
def on_disk(parent: str, uid: int | None):
    """A fresh directory below `parent`, gone afterwards whatever the snippet left in it."""
    os.makedirs(parent, exist_ok=True)  # an earlier snippet may have removed it
    box = tempfile.mkdtemp(prefix="box-", dir=parent)
    if uid is not None:
        os.chown(box, uid, uid)
    try:
        yield box
    finally:
        remove(box)


def write(box: str, files: dict[str, bytes], uid: int | None):
    """Puts files (plain names) into a box, owned by the user of its snippet."""
    for name, content in files.items():
        with open(os.path.join(box, name), "wb") as file:
            file.write(content)
            if uid is not None:
                os.fchown(file.fileno(), uid, uid)


def remove(path: str):
    """Removes a tree, also one with unreadable directories or too deep for `shutil.rmtree`."""
    try:
        shutil.rmtree(path)
    except (OSError, RecursionError):
        subprocess.run(["chmod", "-R", "u+rwx", path], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", path], check=True, stdout=subprocess.DEVNULL)


def measure(box: str, most_files: int) -> tuple[int, int]:
    """Files and bytes in a box; counting stops where there are too many."""
    files, size, folders = 0, 0, [box]
    while folders and files <= most_files:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                files += 1
                with contextlib.suppress(OSError):
                    size += entry.stat(follow_symlinks=False).st_size
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
    return files, size


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
