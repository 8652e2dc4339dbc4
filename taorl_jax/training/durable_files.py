"""Files that are either whole or absent, whenever the process or the machine dies."""

import os
import pathlib


def write_atomically(path: pathlib.Path, data: bytes) -> None:
    """Puts `data` at `path` in one step; a crash leaves the old file or the new one.

    Raises:
      OSError: the disk is full or the folder is not writable; the old file is intact.
    """
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with open(unfinished, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: pathlib.Path) -> None:
    """Returns when the file's contents, or the folder's list of names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
