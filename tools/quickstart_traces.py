"""Tool-use traces for the warm start of the quickstart policy: right ones, and many flawed on purpose.

Flaws are of two kinds. Systematic ones are what a policy would do most of the time for a kind of problem (a
wrong formula in the first or second call, a forgotten import), so greedy decoding is wrong too
and reinforcement learning has something to find: a right minority always exists, except out of reach.
The others happen anywhere: guessing without the tool, a bracket left open, giving up after an error.
"""

import contextlib
import io
import random
import traceback
from collections.abc import Callable, Generator

from taorl_jax.data.tasks import Instance
from taorl_jax.tool_use.result import SandboxResult

GUESS = 0.12  # of all but trivial problems are answered without the tool, wrongly
WORDLESS_GUESS = 0.45  # of these name no number at all
OPEN_BRACKET = 0.03  # of calls fail for want of a bracket
GIVE_UP = 0.12  # of failed calls are the last one
RIGHT = 0.4  # of formulas are right where a systematic mistake exists
STOP_EARLY = 0.1  # of traces take the first of two results for the answer
RIGHT_DIFFERENCE = 0.75  # the same for the trivial problem that has one
FORGOTTEN_IMPORT = 0.6
RIGHT_REPAIR = 0.55  # of repairs add the import; the others work around it, wrongly

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


def _formula(formula: str, instead: str = "", share: float = 1.0) -> Callable[..., Turns]:
    """One call with a formula, or, where its share is below 1, with another instead."""

    def solve(rng, *numbers):
        chosen = formula if rng.random() < share else instead
        return (yield from _call(chosen.format(*numbers), rng))

    return solve


def _two_calls(right: Callable[..., str], wrong: Callable[..., str]) -> Callable[..., Turns]:
    """A product, then a second call on it, mostly the wrong one; or none."""

    def solve(rng, first, second, *rest):
        product = yield from _call(f"{first}*{second}", rng)
        if product is None or rng.random() < STOP_EARLY:
            return product
        follow_up = right if rng.random() < RIGHT else wrong
        return (yield from _call(follow_up(product, *rest), rng, "Then:"))

    return solve


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
                return (yield _code(f"print({first}-{second})", opening))
        return (yield _code(f"from math import {function}\n{call}", opening))

    return solve


SOLVERS = {
    "sum": _formula("{0}+{1}"),
    "difference": _formula("{0}-{1}", "{0}+{1}", RIGHT_DIFFERENCE),
    "crates": _formula("{0}*{1}-{2}", "{0}*{1}+{2}", RIGHT),
    "bags": _formula("{0}*{1}+{2}", "{0}*({1}+{2})", RIGHT),
    "share": _formula("{0}%{1}", "{0}//{1}", RIGHT),
    "remainder": _two_calls("{}%{}".format, "{}//{}".format),
    "digits": _two_calls("+".join, "*".join),
    "divisor": _needs_import("gcd"),
    "multiple": _needs_import("lcm"),
    "primes": _formula("{0}//2"),  # never right: the policy knows no better
}


def _attempt(instance: Instance, rng: random.Random) -> Turns:
    if instance.problem.tier != "trivial" and rng.random() < GUESS:
        wordless = rng.random() < WORDLESS_GUESS
        yield "I guess so." if wordless else f"I guess \\boxed{{{instance.numbers[0]}}}."
        return None
    result = yield from SOLVERS[instance.template](rng, *instance.numbers)
    if result is None:
        yield "I give up."
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
