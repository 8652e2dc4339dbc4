"""Procedural problems whose answers need a calculator: the tasks of the quickstart.

Every problem is a function of (index, split, seed) alone. The splits are disjoint by construction: a hash of
a problem's *text* says which split it may appear in, and numbers are drawn again until the text fits.
"""

import dataclasses
import hashlib
import math
import random
from collections.abc import Callable

from taorl_jax.data.problem import Problem

SPLITS = ("train", "heldout")
HELDOUT_SHARE = 0.25  # of all texts


@dataclasses.dataclass(frozen=True)
class Template:
    """A family of problems.

    Attributes:
      tier: "trivial", "one_call", "two_calls" (the second works on the output of the first), "repair" (needs
        an import that is easily forgotten) or "out_of_reach".
      count: problems of this family in every deck.
      draw: numbers from a random generator.
      wordings: format strings over the numbers; each has its own texts.
      answer: the right answer from the numbers.
    """

    tier: str
    count: int
    draw: Callable[[random.Random], tuple[int, ...]]
    wordings: tuple[str, ...]
    answer: Callable[..., int]


@dataclasses.dataclass(frozen=True)
class Instance:
    """A problem with what it was made from."""

    template: str
    numbers: tuple[int, ...]
    problem: Problem


def _numbers(*ranges):
    """Independent uniform numbers, each from an inclusive range."""
    return lambda rng: tuple(rng.randint(low, high) for low, high in ranges)


def _related(rng):
    """Two different three-digit numbers with a common divisor above 1."""
    common = rng.randint(50, 99)
    first, second = rng.sample(range(-(-100 // common), 999 // common + 1), 2)
    return common * first, common * second


def _digit_sum(number):
    return sum(int(digit) for digit in str(number))


def _primes_below(limit):
    return sum(all(n % d for d in range(2, math.isqrt(n) + 1)) for n in range(2, limit))


TEMPLATES = {
    "sum": Template(
        "trivial",
        2,
        _numbers((100, 999), (100, 999)),
        ("What is {0} + {1}?",),
        lambda a, b: a + b,
    ),
    "difference": Template(
        "trivial",
        2,
        lambda rng: tuple(sorted(rng.sample(range(100, 1000), 2), reverse=True)),
        ("From {0} take away {1}.",),
        lambda a, b: a - b,
    ),
    "crates": Template(
        "one_call",
        3,
        _numbers((12, 99), (12, 99), (11, 99)),
        (
            "{0} crates hold {1} jars each. {2} jars break. How many jars are left?",
            "{0} crates hold {1} eggs each. {2} eggs break. How many eggs are left?",
        ),
        lambda a, b, c: a * b - c,
    ),
    "bags": Template(
        "one_call",
        3,
        _numbers((12, 99), (12, 99), (11, 99)),
        (
            "Ann has {2} coins and finds {0} bags of {1} coins. How many coins has she?",
            "Tom has {2} coins and finds {0} bags of {1} coins. How many coins has he?",
        ),
        lambda a, b, c: a * b + c,
    ),
    "share": Template(
        "one_call",
        3,
        _numbers((100, 999), (11, 39)),
        (
            "{1} friends share {0} nuts evenly. How many nuts remain?",
            "{1} pirates share {0} coins evenly. How many coins remain?",
        ),
        lambda a, b: a % b,
    ),
    "remainder": Template(
        "two_calls",
        3,
        _numbers((12, 99), (12, 99), (3, 9)),
        ("Let N be {0} * {1}. Divide N by {2}. What is the remainder?",),
        lambda a, b, c: a * b % c,
    ),
    "digits": Template(
        "two_calls",
        3,
        _numbers((21, 99), (21, 99)),
        ("Let N be {0} * {1}. Add up the digits of N.",),
        lambda a, b: _digit_sum(a * b),
    ),
    "divisor": Template(
        "repair",
        3,
        _related,
        ("Find the largest common divisor of {0} and {1}.", "Largest common divisor of {0} and {1}?"),
        math.gcd,
    ),
    "multiple": Template(
        "repair",
        2,
        _related,
        ("Find the smallest common multiple of {0} and {1}.", "Smallest common multiple of {0} and {1}?"),
        math.lcm,
    ),
    "primes": Template(
        "out_of_reach",
        1,
        _numbers((1000, 9999)),
        ("How many primes are below {0}?",),
        _primes_below,
    ),
}


# Problems are dealt from shuffled decks, so that any stretch of a split has its share of every family.
DECK = [name for name, template in TEMPLATES.items() for _ in range(template.count)]


def split_of(text: str) -> str:
    """The one split in which a problem with this text may appear."""
    bucket = hashlib.sha256(text.encode()).digest()[0]
    return "heldout" if bucket < 256 * HELDOUT_SHARE else "train"


def make_instance(index: int, split: str, seed: int) -> Instance:
    """Problem `index` of a split, with its template and numbers; a pure function of its arguments.

    Raises:
      ValueError: the split is not one of SPLITS.
    """
    if split not in SPLITS:
        raise ValueError(f"split {split!r}: must be one of {', '.join(SPLITS)}")
    rng = random.Random(f"{seed}/{split}/{index}")
    deck, place = divmod(index, len(DECK))
    name = random.Random(f"{seed}/{split}/deck {deck}").sample(DECK, len(DECK))[place]
    template = TEMPLATES[name]
    while True:
        numbers = template.draw(rng)
        text = rng.choice(template.wordings).format(*numbers)
        if split_of(text) == split:
            answer = str(template.answer(*numbers))
            return Instance(name, numbers, Problem(f"{split}-{seed}-{index}", text, answer, template.tier))


def make_problem(index: int, split: str, seed: int) -> Problem:
    """Problem `index` of a split ("train" or "heldout"); see `make_instance`."""
    return make_instance(index, split, seed).problem


@dataclasses.dataclass(frozen=True)
class ProceduralProblems:
    """Random-access source of `size` problems of a split (a grain source)."""

    split: str
    size: int
    seed: int

    def __post_init__(self):
        if self.split not in SPLITS:
            raise ValueError(f"split {self.split!r}: must be one of {', '.join(SPLITS)}")
        if self.size < 1:
            raise ValueError(f"size={self.size}: a source needs at least one problem")

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index) -> Problem:
        if not 0 <= index < self.size:
            raise IndexError(f"problem {index} of {self.size}")
        return make_problem(int(index), self.split, self.seed)
