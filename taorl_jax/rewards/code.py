"""Judging programs against tests, through the sandbox.

A program is right if it passes every test. It runs as a main module of its own for each test, under the
limits of `sandbox.*`; nothing that it prints or leaves behind can touch the comparison, which is made here.
What the sandbox could not run is UNKNOWN: an outage is never a wrong answer.
"""

import concurrent.futures
import dataclasses
import decimal
import json
from collections.abc import Sequence
from typing import Protocol

from taorl_jax.data.problem import CodeTest, read_value
from taorl_jax.rewards.verdict import Outcome, Verdict
from taorl_jax.tool_use.result import SandboxDown, SandboxFailure, SandboxResult

KEPT_BYTES = 60_000  # of stdout; the sandbox keeps 64 KiB and cuts out the middle of more


class Runner(Protocol):
    """What runs programs: `SandboxClient`."""

    def submit(self, code: str, stdin: str = "") -> "concurrent.futures.Future[SandboxResult]":
        """Starts a program."""


@dataclasses.dataclass(frozen=True)
class CodeVerdict:
    """What the tests said.

    Attributes:
      verdict: of the whole; its answer is the program, its reason names the first test that failed.
      passed: tests passed; the others failed, or were not judged.
      tests: all tests.
    """

    verdict: Verdict
    passed: int
    tests: int

    @property
    def fraction(self) -> float:
        """Share of tests passed, for a graded reward."""
        return self.passed / self.tests


def judge_program(runner: Runner, program: str | None, tests: Sequence[CodeTest]) -> CodeVerdict:
    """Runs a program on all its tests at once and compares.

    A test that fails makes the program wrong, even if others could not be run; if none failed but some could
    not be run, the verdict is unknown.

    Args:
      runner: runs programs; its limits hold for each test.
      program: Python source; None: there was none.
      tests: at least one.

    Raises:
      ValueError: there are no tests: an empty suite would pass everything.
      SandboxDown: no sandbox answers at all.
    """
    if not tests:
        raise ValueError("a program cannot be judged without tests")
    if program is None:
        return CodeVerdict(Verdict(Outcome.WRONG, None, "no program"), 0, len(tests))
    calls = [runner.submit(_script(program, test), "" if test.function else test.input) for test in tests]
    outcomes = [_judge_test(call, test) for call, test in zip(calls, tests, strict=True)]
    passed = sum(outcome is Outcome.RIGHT for outcome, _ in outcomes)
    for wanted in (Outcome.WRONG, Outcome.UNKNOWN):
        for number, (outcome, reason) in enumerate(outcomes, start=1):
            if outcome is wanted:
                verdict = Verdict(wanted, program, f"test {number} of {len(tests)}: {reason}")
                return CodeVerdict(verdict, passed, len(tests))
    return CodeVerdict(Verdict(Outcome.RIGHT, program, f"passed {len(tests)} tests"), passed, len(tests))


def _judge_test(call, test) -> tuple[Outcome, str]:
    try:
        result = call.result()
    except SandboxDown:
        raise
    except SandboxFailure:
        return Outcome.UNKNOWN, "the sandbox failed"
    if result.outcome == "timeout":
        return Outcome.WRONG, "timeout"
    if result.outcome != "ok":  # also when nothing was to be printed
        return Outcome.WRONG, result.outcome.replace("_", " ")
    if test.function:
        same = _same_value(result.final_answer, test.returned())
    else:
        same = _same_text(result.stdout, test.output)
    if same:
        return Outcome.RIGHT, "passed"
    if len(test.output.encode()) > KEPT_BYTES:
        return Outcome.UNKNOWN, "its output is longer than the sandbox keeps"
    return Outcome.WRONG, "another output"


def _script(program: str, test: CodeTest) -> str:
    """The program itself, or the program and a call of its function whose value goes out by `final_answer`.

    The record is apart from stdout, so that a program that prints as well is judged by what it returns.
    """
    if not test.function:
        return program
    return (
        "import json as _json\n"
        f"_space = {{'__name__': '__main__'}}\n"
        f"exec(compile({program!r}, '<program>', 'exec'), _space)\n"
        f"_owner = _space['Solution']() if 'Solution' in _space else None\n"
        f"_call = getattr(_owner, {test.function!r}) if _owner else _space[{test.function!r}]\n"
        f"final_answer(_json.dumps(_call(*_json.loads({json.dumps(test.arguments())!r}))))\n"
    )


def _same_value(record: str | None, expected) -> bool:
    """Whether the returned JSON value is the expected one; 1 and 1.0 are one number, True and 1 are not."""
    try:
        return record is not None and _plain(read_value(record)) == _plain(expected)
    except ValueError:  # the program called final_answer() itself
        return False


def _plain(value):
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return (type(value).__name__, value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _same_text(stdout: str, expected: str) -> bool:
    """Line by line, blanks at the ends of lines and of the text apart; numbers by value, decimals exactly."""
    lines, wanted = (_lines(text) for text in (stdout, expected))
    return len(lines) == len(wanted) and all(
        line == want or _same_numbers(line, want) for line, want in zip(lines, wanted, strict=True)
    )


def _lines(text):
    return [line.strip() for line in text.strip().split("\n")]


def _same_numbers(line, want):
    """Whether two lines hold the same numbers, written differently (3 and 3.0)."""
    fields, wanted = line.split(), want.split()
    if len(fields) != len(wanted):
        return False
    try:
        return [decimal.Decimal(field) for field in fields] == [decimal.Decimal(field) for field in wanted]
    except decimal.InvalidOperation:
        return False
