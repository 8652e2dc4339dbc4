"""The filter's program, run by an interpreter of BPF written here from the kernel's documentation."""

import errno
import struct

import pytest

from sandbox_service.kernel.seccomp import program
from sandbox_service.kernel.syscall_table import allowed

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = "allow", "kill"


def verdict(machine, number, *arguments, architecture=None):
    """What the filter says of a call: ALLOW, KILL, or an error number."""
    low_words = [argument & 0xFFFFFFFF for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    data = struct.pack("=iIQ6Q", number, architecture or ARCHITECTURES[machine], 0, *low_words)
    code, at, word = program(machine), 0, 0
    while True:
        operation, if_true, if_false, value = struct.unpack_from("=HBBI", code, at * 8)
        at += 1
        if operation == 0x20:
            word = struct.unpack_from("=I", data, value)[0]
        elif operation == 0x06:
            return {0x7FFF0000: ALLOW, 0x80000000: KILL}.get(value, value & 0xFFFF)
        else:
            holds = {0x15: word == value, 0x35: word >= value, 0x45: bool(word & value)}[operation]
            at += if_true if holds else if_false


CLONE = {"x86_64": 56, "aarch64": 220}
IOCTL = {"x86_64": 16, "aarch64": 29}
SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
machines = pytest.mark.parametrize("machine", ARCHITECTURES)


@machines
def test_every_number_is_allowed_if_and_only_if_it_is_listed(machine):
    special = {CLONE[machine], IOCTL[machine], SOCKETPAIR[machine]}
    for number in range(600):
        if number in special:
            continue
        wanted = ALLOW if number in allowed(machine) else errno.EPERM
        if number == 435 or number > 461:
            wanted = errno.ENOSYS
        assert verdict(machine, number) == wanted, number


@machines
def test_arguments_decide_for_three_calls(machine):
    assert verdict(machine, CLONE[machine], 0x01200011) == ALLOW  # fork
    assert verdict(machine, CLONE[machine], 0x003D0F00) == ALLOW  # a thread
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, CLONE[machine], flag | 17) == errno.EPERM
    assert verdict(machine, IOCTL[machine], 0, 0x5413) == ALLOW
    assert verdict(machine, IOCTL[machine], 0, 0x5412) == errno.EPERM
    assert verdict(machine, IOCTL[machine], 0, 0x541C) == errno.EPERM
    assert verdict(machine, SOCKETPAIR[machine], 1) == ALLOW
    assert verdict(machine, SOCKETPAIR[machine], 2) == errno.EPERM


@machines
def test_calls_of_other_architectures_kill(machine):
    assert verdict(machine, 1, architecture=0x40000003) == KILL  # i386


def test_x32_calls_do_not_exist():
    assert verdict("x86_64", 0x40000000 | 1) == errno.ENOSYS


@pytest.mark.parametrize(
    ("name", "numbers"),
    {
        "socket": (41, 198),
        "ptrace": (101, 117),
        "bpf": (321, 280),
        "mount": (165, 40),
        "connect": (42, 203),
    }.items(),
)
def test_what_must_never_be_listed(name, numbers):
    for machine, number in zip(ARCHITECTURES, numbers, strict=True):
        assert verdict(machine, number) == errno.EPERM, name


def test_other_machines_have_no_table():
    with pytest.raises(OSError, match="riscv64"):
        allowed("riscv64")
