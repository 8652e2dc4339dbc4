"""Tool-use traces for the warm start of the quickstart policy: right ones, and many flawed on purpose.

Flaws are of two kinds. Systematic ones are what a policy would do most of the time for a kind of problem (a
wrong formula, stopping after the first of two calls, a forgotten import), so greedy decoding is wrong too
and reinforcement learning has something to find: a right minority always exists, except out of reach.
The others happen anywhere: guessing without the tool, a bracket left open, giving up, an answer without box.
"""

import contextlib
import io
import random
import traceback
from collections.abc import Callable, Generator

from taorl_jax.data.tasks import Instance
from taorl_jax.tool_use.result import SandboxResult

GUESS = 0.10  # answers without the tool, wrongly
WORDLESS_GUESS = 0.3  # share of the guesses that don't even name a number
OPEN_BRACKET = 0.05  # a call fails for want of a bracket
UNBOXED = 0.03  # names its answer outside a box
GIVE_UP = 0.3  # of failed calls are the last one
RIGHT = 0.45  # right formula, or a second call, where a systematic mistake exists
RIGHT_MOSTLY = 0.88  # the same for trivial problems
FORGOTTEN_IMPORT = 0.7
RIGHT_REPAIR = 0.65  # of repairs add the import; the others work around it, wrongly

FENCE = "```"
# A turn is text of the policy; what comes back is the output of its code, or None if that failed.
Turns = Generator[str, str | None, str | None]
# An episode: the policy's turns, each with the result of its code (None if it has none: the last turn).
Trace = list[tuple[str, SandboxResult | None]]


def _code(code: str, opening: str = "Run it:") -> str:
    return f"{opening}\n{FENCE}python\n{code}\n{FENCE}"


def _call(expression: str, rng: random.Random, opening: str = "Run it:") -> Turns:
    """Prints an expression, perhaps after a try that lacks a bracket."""
    if rng.random() < OPEN_BRACKET:
        yield _code(f"print({expression}", opening)
        if rng.random() < GIVE_UP:
            return None
        opening = "Repair:"
    return (yield _code(f"print({expression})", opening))


def _formula(right: str, wrong: str, share: float) -> Callable[..., Turns]:
    """One call with the right formula or with the wrong one."""

    def solve(rng, *numbers):
        formula = right if rng.random() < share else wrong
        return (yield from _call(formula.format(*numbers), rng))

    return solve


def _halve(rng, first, second, step) -> Turns:
    """Mostly stops at N; else halves or adds, now and then the wrong one of the two."""
    number = yield from _call(f"{first}*{second}", rng)
    if number is None or rng.random() > RIGHT + 0.03:
        return number
    halves = (int(number) % 2 == 0) ^ (rng.random() < 0.2)
    return (yield from _call(f"{number}//2" if halves else f"{number}+{step}", rng, "Then:"))


def _digits(rng, first, second) -> Turns:
    """Mostly stops at N; else adds its digits, or multiplies them."""
    number = yield from _call(f"{first}*{second}", rng)
    if number is None or rng.random() > RIGHT + 0.03:
        return number
    sign = "*" if rng.random() < 0.2 else "+"
    return (yield from _call(sign.join(number), rng, "Then:"))


def _needs_import(function: str) -> Callable[..., Turns]:
    """Calls a function of `math`, at first mostly without importing it."""

    def solve(rng, first, second):
        call, opening = f"print({function}({first},{second}))", "Run it:"
        if rng.random() < FORGOTTEN_IMPORT:
            yield _code(call, opening)
            opening = "Repair:"
            if rng.random() < GIVE_UP:
                return None
            if rng.random() > RIGHT_REPAIR:
                return (yield _code(f"print({max(first, second)}-{min(first, second)})", opening))
        return (yield _code(f"from math import {function}\n{call}", opening))

    return solve


SOLVERS = {
    "sum": _formula("{0}+{1}", "{0}-{1}", RIGHT_MOSTLY),
    "difference": _formula("{1}-{0}", "{0}-{1}", RIGHT_MOSTLY),
    "crates": _formula("{0}*{1}-{2}", "{0}*{1}+{2}", RIGHT),
    "bags": _formula("{0}*{1}+{2}", "{0}*({1}+{2})", RIGHT),
    "share": _formula("{0}%{1}", "{0}//{1}", RIGHT),
    "halve": _halve,
    "digits": _digits,
    "divisor": _needs_import("gcd"),
    "multiple": _needs_import("lcm"),
    "primes": _formula("{0}//2", "{0}//3", 0.5),  # never right: the policy knows no better
}


def _attempt(instance: Instance, rng: random.Random) -> Turns:
    if rng.random() < GUESS:
        wordless = rng.random() < WORDLESS_GUESS
        yield "I guess so." if wordless else f"I guess \\boxed{{{rng.randint(10, 999)}}}."
        return None
    result = yield from SOLVERS[instance.template](rng, *instance.numbers)
    if result is None:
        yield "I give up."
    elif rng.random() < UNBOXED:
        yield f"The answer is {result}."
    else:
        yield f"The answer is \\boxed{{{result}}}."


def execute(code: str) -> SandboxResult:
    """Runs code of the traces above in this process: it is ours, short, and free of side effects."""
    stdout = io.StringIO()
    try:
        with contextlib.redirect_stdout(stdout):
            exec(compile(code, "trace", "exec"), {})
    except (SyntaxError, NameError) as error:
        return SandboxResult(
            "exception", stdout.getvalue(), "".join(traceback.format_exception_only(error)), None, 0.0
        )
    return SandboxResult("ok", stdout.getvalue(), "", None, 0.0)


def make_trace(instance: Instance, rng: random.Random) -> Trace:
    """One episode of a policy with the flaws described above; its code is really run."""
    attempt = _attempt(instance, rng)
    turns, turn = [], next(attempt)
    while turn.endswith(FENCE):
        result = execute(turn.split(f"{FENCE}python\n")[1].removesuffix(FENCE))
        turns.append((turn, result))
        turn = attempt.send(result.stdout.strip() if result.outcome == "ok" else None)
    return [*turns, (turn, None)]
