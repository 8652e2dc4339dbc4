"""Naming what became of a run."""

import re
import signal

CODE_OUTCOMES = (
    "ok",
    "nonzero_exit",
    "exception",
    "timeout",
    "cpu_limit",
    "memory_limit",
    "output_limit",
    "signal",
    "rejected",
)
OUTCOMES = (*CODE_OUTCOMES, "infra_error")

_TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):$|^  File \".*\", line \d+$|^SyntaxError: ", re.M
)
_MEMORY_ERROR = re.compile(r"^[\w.]*MemoryError\b")
# Python 3.13 formats tracebacks in Python, and may have no memory left to do it.
_UNPRINTED_MEMORY_ERROR = re.compile(r"^object type name: \w*MemoryError$.*^lost sys\.stderr$", re.M | re.S)


def name_outcome(
    exit_code: int | None, signal_number: int | None, cpu_s: float, cpu_limit_s: float, stderr: str
):
    """Outcome of a run that ended by itself or by the kernel's limits.

    That an exit with code 1 was an uncaught exception shows only in what the interpreter wrote to stderr.
    """
    if signal_number is not None:
        out_of_time = signal_number == signal.SIGKILL and cpu_s >= cpu_limit_s
        return "cpu_limit" if out_of_time or signal_number == signal.SIGXCPU else "signal"
    if exit_code == 0:
        return "ok"
    if exit_code != 1 or not _TRACEBACK.search(stderr):
        return "nonzero_exit"
    last_line = stderr.rstrip().rpartition("\n")[2]
    out_of_memory = _MEMORY_ERROR.match(last_line) or _UNPRINTED_MEMORY_ERROR.search(stderr)
    return "memory_limit" if out_of_memory else "exception"


def completed_stderr(stderr: str, note: str) -> str:
    """Standard error with, as its last line, what the interpreter had no memory left to say or we did."""
    if _UNPRINTED_MEMORY_ERROR.search(stderr):
        note = note or "MemoryError"
    return f"{stderr}{note}\n" if note else stderr
