"""Landlock: a process gives up, for good, all access to files except below some (landlock(7))."""

import contextlib
import ctypes
import os
import struct

from sandbox_service.kernel.libc import syscall

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_ALL_OF_FIRST_ABI = (1 << 13) - 1
_REFER, _TRUNCATE = 1 << 13, 1 << 14  # since ABI 2 and 3
_NET_BIND_AND_CONNECT = 3  # since ABI 4
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3  # since ABI 6

READ = _EXECUTE | _READ_FILE | _READ_DIR
READ_FILES = _READ_FILE
DEVICES = _READ_FILE | _WRITE_FILE
EVERYTHING = _ALL_OF_FIRST_ABI | _REFER | _TRUNCATE
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE


def abi() -> int:
    """Version of Landlock in this kernel.

    Raises:
      OSError: it has none.
    """
    return syscall("Landlock", _CREATE, None, 0, 1)


def _handled(version: int) -> int:
    return _ALL_OF_FIRST_ABI | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)


def _new_ruleset(version: int) -> int:
    fields = [_handled(version)]
    fields += [_NET_BIND_AND_CONNECT] if version >= 4 else []
    fields += [_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS] if version >= 6 else []
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    return syscall("landlock_create_ruleset", _CREATE, ctypes.c_char_p(attributes), len(attributes), 0)


def restrict(rules: dict[str, int], version: int):
    """Leaves this process only the given access below the given paths; needs no_new_privs.

    Args:
      rules: path -> access (READ, READ_FILES, DEVICES or EVERYTHING); paths that do not exist are left out.
      version: what `abi` said.
    """
    ruleset = _new_ruleset(version)
    for path, access in rules.items():
        with contextlib.suppress(FileNotFoundError):
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = access & _handled(version) & (-1 if os.path.isdir(path) else _OF_A_FILE)
            attributes = ctypes.c_char_p(struct.pack("=Qi", allowed, parent))
            try:
                syscall("landlock_add_rule", _ADD_RULE, ruleset, 1, attributes, 0)
            finally:
                os.close(parent)
    syscall("landlock_restrict_self", _RESTRICT, ruleset, 0)
    os.close(ruleset)
