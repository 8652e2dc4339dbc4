"""The program that compares two answers, in a process of its own.

Started by `taorl_jax.rewards.math`, which owns the wall clock and ends this process when an answer runs
over it. It imports nothing of the package but the comparison itself, so that starting it costs only sympy.

Arguments: file descriptor of the connection to the parent, memory limit (MiB), wall limit (seconds).
"""

import logging
import os
import pathlib
import re
import resource
import sys
from multiprocessing.connection import Connection

from taorl_jax.rewards.answer_form import Unreadable, read_answer
from taorl_jax.rewards.equality import check_readable, same
from taorl_jax.rewards.latex import tidy, words


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


def decide(gold: str, answer: str | None) -> tuple[str, str]:
    """Outcome (`right`, `wrong` or `unknown`) and reason.

    Args:
      gold: the reference answer.
      answer: what is judged; None asks whether the gold answer itself can be read and equals itself.
    """
    try:
        return _decide(gold, answer)
    except MemoryError:
        return "unknown", "the verifier ran out of memory"
    except Exception as error:  # sympy may raise anything; that we could not judge is itself the verdict
        return "unknown", f"the verifier failed with {type(error).__name__}"


def _decide(gold, answer):
    try:
        gold_form = read_answer(gold)
        check_readable(gold_form)
    except Unreadable as error:
        if answer is not None and words(tidy(gold)) == words(tidy(answer)):
            return "right", "same text"
        return "unknown", f"the gold answer cannot be read: {error}"
    if answer is None:
        return ("right", "equals itself") if same(gold_form, gold_form) else ("wrong", "not equal to itself")
    try:
        answer_form = read_answer(answer)
        check_readable(answer_form)
        equal = same(gold_form, answer_form)
    except Unreadable as error:
        return "wrong", f"the answer cannot be read: {error}"
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
