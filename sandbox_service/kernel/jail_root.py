"""A root directory of its own: interpreter and system libraries, read-only, and nothing of the host."""

import ctypes
import functools
import os
import struct
import sys

from sandbox_service.kernel.libc import detach, mount, pivot_root, syscall

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_MOUNT_SETATTR = 442
_AT_RECURSIVE = 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4

BOX = "/box"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/fonts")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
    "/dev/shm": BOX,  # multiprocessing keeps its semaphores there
    "/tmp": BOX,
}
_FILES = {
    "/etc/passwd": "box:x:{uid}:{uid}::/box:/bin/sh\n",
    "/etc/group": "box:x:{uid}:\n",
}


def interpreter_paths() -> list[str]:
    """Directories that this interpreter needs, the packages it can import among them."""
    paths = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    paths |= {os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))}
    paths |= {path for path in sys.path if os.path.isdir(path)}
    return sorted(path for path in paths if path not in ("", "/"))


@functools.cache
def visible_paths() -> list[str]:
    """Directories of the host that stay visible, none below another."""
    wanted = [path for path in _SYSTEM if os.path.isdir(path) and not os.path.islink(path)]
    outermost = []
    for path in sorted({*wanted, *interpreter_paths()}):
        if not any(path.startswith(parent + "/") for parent in outermost):
            outermost.append(path)
    return outermost


def set_read_only(path: str, recursive: bool = True, attributes: int = 0):
    """Makes mounts read-only by mount_setattr(2), which leaves alone what an unprivileged user can't undo."""
    change = ctypes.c_char_p(struct.pack("=4Q", _ATTR_RDONLY | attributes, 0, 0, 0))
    flags = _AT_RECURSIVE if recursive else 0
    syscall("mount_setattr", _MOUNT_SETATTR, -100, ctypes.c_char_p(path.encode()), flags, change, 32)


def _bind(root: str, path: str):
    if os.path.isdir(path):
        os.makedirs(root + path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        with open(root + path, "w"):
            pass
    mount(path, root + path, None, _MS_BIND | _MS_REC)


def _fill(root: str, uid: int):
    for path in (*visible_paths(), *SYSTEM_FILES):
        if os.path.exists(path):
            _bind(root, path)
            set_read_only(root + path, attributes=_ATTR_NOSUID | _ATTR_NODEV)
    for path in DEVICES:
        _bind(root, path)
    for path in _SYSTEM:
        if os.path.islink(path):
            os.symlink(os.readlink(path), root + path)
    for path, target in _LINKS.items():
        if not os.path.lexists(root + path):  # /tmp is a folder already where the interpreter lies below it
            os.symlink(target, root + path)
    for path, text in _FILES.items():
        with open(root + path, "w") as file:
            file.write(text.format(uid=uid))
    for name in ("/proc", BOX):
        os.mkdir(root + name)


def make_private():
    """Keeps what this mount namespace does from reaching any other."""
    mount("none", "/", None, _MS_REC | _MS_PRIVATE)


def mount_proc(target: str):
    """Mounts the process list of this PID namespace."""
    mount("proc", target, "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def enter(mountpoint: str, uid: int):
    """Moves into a new root at `mountpoint`; the old one is gone. Needs a mount namespace of one's own.

    Raises:
      OSError: a mount was refused.
    """
    make_private()
    mount("jail", mountpoint, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=1m")
    for name in ("/dev", "/etc"):
        os.mkdir(mountpoint + name, 0o755)
    _fill(mountpoint, uid)
    mount_proc(mountpoint + "/proc")
    os.chdir(mountpoint)
    pivot_root(".", ".")
    detach(".")
    os.chdir("/")
    set_read_only("/", recursive=False)


def mount_box(uid: int, size_bytes: int, inodes: int):
    """Mounts an empty scratch directory of `uid` at BOX."""
    options = f"mode=700,uid={uid},gid={uid},size={size_bytes},nr_inodes={inodes}"
    mount("box", BOX, "tmpfs", _MS_NOSUID | _MS_NODEV, options)
