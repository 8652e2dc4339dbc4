"""Starting a Python process with fewer privileges than we have.

`root` has all; `container` is root in a plain container: no CAP_SYS_ADMIN, and a filter that refuses new
namespaces and mounts; `ordinary` is a user without any privilege.
"""

import contextlib
import os
import struct
import sys
import tempfile
from pathlib import Path

from sandbox_service.kernel import jail_root, libc, seccomp

ORDINARY_UID = 65534
_CAP_SYS_ADMIN = 21
_MS_BIND, _MS_REC = 4096, 16384
_CLONE3, _MOUNT_SETATTR = 435, 442


_START = f"import sys; sys.path[:0] = {[str(Path(__file__).parents[1]), str(Path(__file__).parent)]}; " + (
    "import privileges; privileges.main(*sys.argv[1:])"
)


def own() -> str:
    """The mode that we are in."""
    return "root" if os.geteuid() == 0 else "ordinary"


def available() -> list[str]:
    """The modes that we can start a process in."""
    if os.geteuid() != 0:
        return ["ordinary"]
    return ["root", "container", "ordinary"] if _has(_CAP_SYS_ADMIN) else ["container"]


def _has(capability: int) -> bool:
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff")
    )
    return bool(int(line.split()[1], 16) >> capability & 1)


def prefix(mode: str) -> list[str]:
    """The command line that starts this interpreter in a mode; its arguments follow."""
    same = mode == own() and (mode != "root" or _has(_CAP_SYS_ADMIN))
    return [sys.executable] if same else [sys.executable, "-c", _START, mode, sys.executable]


@contextlib.contextmanager
def shared_folder():
    """A new folder that a process in any mode can reach and write to."""
    with tempfile.TemporaryDirectory(prefix="sandbox-test-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


def _closed_ancestor(path: str) -> str | None:
    """The outermost folder above a path that others can't enter."""
    for parent in reversed(Path(path).parents):
        if not parent.stat().st_mode & 1:
            return str(parent)
    return None


def _open_interpreter_to_others():
    """Where the interpreter lies below a closed folder, shows others only it: in mounts of our own."""
    libc.unshare(libc.CLONE_NEWNS)
    jail_root.make_private()
    for path in jail_root.visible_paths():
        if (closed := _closed_ancestor(path)) and os.path.isdir(path):
            source = os.open(path, os.O_PATH)
            libc.mount("none", closed, "tmpfs", 0, "mode=755")
            os.makedirs(path)
            libc.mount(f"/proc/self/fd/{source}", path, None, _MS_BIND | _MS_REC)
            os.close(source)


def _become_container():
    """What a container engine does to root by default."""
    seccomp.load(_container_filter())
    libc.prctl(libc.PR_CAPBSET_DROP, _CAP_SYS_ADMIN)


def _container_filter() -> bytes:
    numbers = {"x86_64": (272, 165, 166, 308, 155, 56), "aarch64": (97, 40, 39, 268, 41, 220)}[libc.MACHINE]
    *refused, clone = numbers  # unshare, mount, umount2, setns, pivot_root
    load_number, load_flags = struct.pack("=HBBI", 0x20, 0, 0, 0), struct.pack("=HBBI", 0x20, 0, 0, 16)
    refuse, unknown, allow = (struct.pack("=HBBI", 0x06, 0, 0, v) for v in (0x50001, 0x50026, 0x7FFF0000))
    code = load_number
    for number in (*refused, _MOUNT_SETATTR):
        code += struct.pack("=HBBI", 0x15, 0, 1, number) + refuse
    code += struct.pack("=HBBI", 0x15, 0, 1, _CLONE3) + unknown
    code += struct.pack("=HBBI", 0x15, 0, 3, clone) + load_flags
    return code + struct.pack("=HBBI", 0x45, 0, 1, 0x7E020000) + refuse + allow


def main(mode: str, *command: str):
    """Becomes a process of that mode, and then the command."""
    _open_interpreter_to_others()
    if mode == "container":
        _become_container()
    else:
        os.setgroups([])
        os.setresgid(ORDINARY_UID, ORDINARY_UID, ORDINARY_UID)
        os.setresuid(ORDINARY_UID, ORDINARY_UID, ORDINARY_UID)
    os.execv(command[0], command)
