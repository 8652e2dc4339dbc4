"""The filter of system calls: an allow-list as a BPF program (seccomp(2), linux/filter.h) built by hand."""

import ctypes
import errno
import itertools
import struct

from sandbox_service.kernel.libc import PR_SET_SECCOMP, prctl
from sandbox_service.kernel.syscall_table import allowed

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_NUMBERS = {
    "x86_64": {"clone": 56, "ioctl": 16, "socketpair": 53},
    "aarch64": {"clone": 220, "ioctl": 29, "socketpair": 199},
}
_CLONE3 = 435
_NEWEST_KNOWN = 461  # of both machines; what is newer does not exist, as far as a snippet can tell
_X32 = 0x40000000

_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_REFUSE = 0x00050000 | errno.EPERM
_UNKNOWN = 0x00050000 | errno.ENOSYS

_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW* flag
_AF_UNIX = 1
_TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _argument_rule(
    number: int, argument: int, tests: list[tuple[int, int]], matched: int, other: int
) -> bytes:
    """For one call: `matched` if a test (code, value) holds of an argument's low word, else `other`."""
    body = _op(_LOAD, _ARGUMENTS_AT + 8 * argument)
    for k, (code, value) in enumerate(tests):
        body += _op(code, value, if_true=len(tests) - k)  # over the other tests and the return after them
    body += _op(_RETURN, other) + _op(_RETURN, matched)
    return _op(_JUMP_EQ, number, if_false=len(body) // 8) + body


def _ranges(numbers: set[int]) -> list[tuple[int, int]]:
    """The runs of consecutive numbers: first, and one beyond the last."""
    groups = itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    return [(run[0], run[-1] + 1) for run in runs]


def program(machine: str) -> bytes:
    """The filter for a machine (as `os.uname` names it).

    A call of another architecture kills. Calls that are not allowed fail with EPERM; clone3, whose flags no
    filter can see, x32 calls and calls newer than this list fail with ENOSYS, so that libraries fall back.

    Raises:
      OSError: for this machine there is no table.
    """
    numbers, special = allowed(machine), _NUMBERS[machine]
    code = _op(_LOAD, _ARCHITECTURE_AT)
    code += _op(_JUMP_EQ, _ARCHITECTURES[machine], if_true=1) + _op(_RETURN, _KILL)
    code += _op(_LOAD, _NUMBER_AT)
    code += _argument_rule(special["clone"], 0, [(_JUMP_SET, _NEW_NAMESPACES)], _REFUSE, _ALLOW)
    code += _argument_rule(special["ioctl"], 1, [(_JUMP_EQ, v) for v in _TERMINAL_INJECTION], _REFUSE, _ALLOW)
    code += _argument_rule(special["socketpair"], 0, [(_JUMP_EQ, _AF_UNIX)], _ALLOW, _REFUSE)
    code += _op(_JUMP_EQ, _CLONE3, if_false=1) + _op(_RETURN, _UNKNOWN)
    for first, end in _ranges(numbers):
        code += _op(_JUMP_GE, first, if_false=2) + _op(_JUMP_GE, end, if_true=1) + _op(_RETURN, _ALLOW)
    code += _op(_JUMP_GE, _NEWEST_KNOWN + 1, if_false=1) + _op(_RETURN, _UNKNOWN)
    return code + _op(_RETURN, _REFUSE)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def load(code: bytes):
    """Puts this process and all that comes from it under a filter, for good; needs no_new_privs.

    Raises:
      OSError: the kernel has no filters.
    """
    filter_ = _Program(len(code) // 8, code)
    prctl(PR_SET_SECCOMP, 2, ctypes.byref(filter_), what="seccomp filter: prctl")
