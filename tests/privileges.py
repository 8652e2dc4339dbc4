"""Starting a Python process with fewer privileges than we have, as a script and as what builds its command line.

`root` has all; `container` is root in a plain container: no CAP_SYS_ADMIN, and a filter that refuses new
namespaces and mounts; `ordinary` is a user without any privilege.
"""

import ctypes
import os
import struct
import sys
import tempfile
from pathlib import Path

ORDINARY_UID = 65534
_CAP_SYS_ADMIN = 21
_ROOT_OF_TESTS = "/root"  # often closed to others, with the interpreter somewhere below


def own() -> str:
    """The mode that we are in."""
    return "root" if os.geteuid() == 0 else "ordinary"


def available() -> list[str]:
    """The modes that we can start a process in."""
    if os.geteuid() != 0:
        return ["ordinary"]
    return ["root", "container", "ordinary"] if _has(_CAP_SYS_ADMIN) else ["container"]


def _has(capability: int) -> bool:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    return bool(int(line.split()[1], 16) >> capability & 1)


def prefix(mode: str) -> list[str]:
    """The command line that starts this interpreter in a mode; its arguments follow."""
    same = mode == own() and (mode != "root" or _has(_CAP_SYS_ADMIN))
    return [sys.executable] if same else [sys.executable, __file__, mode, sys.executable]


def shared_folder(factory, mode: str) -> Path:
    """A new folder that a process in that mode can reach and write to."""
    folder = Path(tempfile.mkdtemp(prefix=f"sandbox-test-{mode}-", dir=factory.mktemp(mode)))
    if mode == "ordinary" and os.geteuid() == 0:
        for parent in folder.parents[:3]:
            parent.chmod(0o755)
    return folder
