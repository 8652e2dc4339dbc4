"""The program that compares two answers with math-verify, in a process of its own.

Started by `taorl_jax.rewards.math`, which owns the wall clock and ends this process when an answer runs
over it. It is run as a file and imports nothing of the package, so that starting it costs only sympy.

Arguments: file descriptor of the connection to the parent, memory limit (MiB), wall limit (seconds).
"""

import logging
import math
import os
import pathlib
import re
import resource
import sys
from multiprocessing.connection import Connection

from math_verify import parse, verify
from sympy import Eq, UnevaluatedExpr

# math-verify rounds floats to 6 decimals, which makes equals of all numbers below 5e-7. It has to hold in
# relative terms as well.
RELATIVE_TOLERANCE = 1e-4


def limit_resources(memory_mb: int):
    """Bounds the address space, and leaves no core file behind."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "darwin":  # macOS refuses this limit: there the wall clock alone holds
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))


def allow_cpu(seconds: float):
    """Bounds the CPU time from now on: should the parent die, nothing else ends a running comparison."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + seconds) + 2
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard == resource.RLIM_INFINITY or soft < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def short_of_memory() -> bool:
    """Whether the address space ever came past half of its limit.

    sympy catches the MemoryError of a number that grew too large and calls the answers different. Such
    numbers grow by doubling, so they have passed half of the limit before they failed.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return False
    peak_kib = re.search(r"VmPeak:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())
    return int(peak_kib[1]) << 10 > limit / 2


def is_false_equation(answer) -> bool:
    """Whether it claims that two different numbers are equal: of `4 = 3` math-verify would take the `3`."""
    if not isinstance(answer, Eq) or answer.free_symbols:
        return False
    return not verify(answer.lhs, answer.rhs, timeout_seconds=None, raise_on_error=True)


def far_apart(gold, answer) -> bool:
    """Whether two numbers that agree to 6 decimals differ all the same."""
    for value in (gold, answer):
        if not getattr(value, "is_number", False) or value.has(UnevaluatedExpr):  # the latter: a percentage
            return False
    difference, size = abs(complex(gold) - complex(answer)), max(abs(complex(gold)), abs(complex(answer)))
    return math.isfinite(size) and difference > RELATIVE_TOLERANCE * size


def decide(gold: str, answer: str) -> tuple[str, str]:
    """Outcome (`right`, `wrong` or `unknown`) and reason. The order matters: math-verify is not symmetric."""
    try:
        parsed_gold, parsed_answer = (
            parse(f"\\boxed{{{text}}}", parsing_timeout=None, raise_on_error=True) for text in (gold, answer)
        )
        if not parsed_gold:
            return "unknown", "the gold answer does not parse"
        if not parsed_answer:
            return "wrong", "the answer does not parse"
        equal = verify(parsed_gold, parsed_answer, timeout_seconds=None, raise_on_error=True)
        if equal and far_apart(parsed_gold[0], parsed_answer[0]):
            return "wrong", "equal only by rounding"
        if equal and is_false_equation(parsed_answer[0]):
            return "wrong", "a false equation"
    except MemoryError:
        return "unknown", "the verifier ran out of memory"
    except Exception as error:  # sympy may raise anything; that we could not judge is itself the verdict
        return "unknown", f"the verifier failed with {type(error).__name__}"
    if not equal and short_of_memory():
        return "unknown", "the verifier ran out of memory"
    return ("right", "equal") if equal else ("wrong", "not equal")


def main(descriptor: str, memory_mb: str, wall_s: str):
    """Answers requests until the parent hangs up."""
    connection = Connection(int(descriptor))
    limit_resources(int(memory_mb))
    logging.disable(logging.CRITICAL)  # one stack trace an unreadable answer would bury the parent's log
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    connection.send("ready")
    while True:
        try:
            gold, answer = connection.recv()
        except EOFError:
            return
        allow_cpu(float(wall_s))
        connection.send(decide(gold, answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
