"""Numbers of a benchmark, worked out by hand from a handful of samples."""

import math

import pytest

from taorl_jax.evaluation.samples import Sample
from taorl_jax.evaluation.table import benchmark_table, differences, per_problem


def sample(problem, number, outcome="right", **changes):
    fields = {
        "benchmark": "own", "problem": problem, "sample": number, "outcome": outcome, "reason": "",
        "answer": "1", "end": "answered", "prompt_tokens": 10, "response_tokens": 20, "observation_tokens": 5,
        "turns": 2, "calls": 1, "valid_calls": 1, "code_lines": 3, "text": "",
    }  # fmt: skip
    return Sample(**fields | changes)


SAMPLES = [
    sample("a", 0),
    sample("a", 1, "wrong", response_tokens=40, answer=None, end="void", turns=1, calls=0, valid_calls=0),
    sample("b", 0, "wrong", calls=2, valid_calls=0, code_lines=7),
    sample("b", 1, "unknown"),
    sample("b", 2),  # beyond K
]


def test_every_number():
    table = benchmark_table("own", SAMPLES, ["a", "b", "c"], ["c"], 2)
    value = {metric: interval.value for metric, interval in table.metrics.items()}
    assert value["avg_at_k"] == pytest.approx(
        (1 / 2 + 0 / 1 + 0) / 3
    )  # a, b without its unknown, c was not tried
    assert value["pass_at_k"] == pytest.approx((1 + 0) / 2)  # a and c; b has one verdict of two
    assert value["coverage"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert value["response_tokens"] == pytest.approx((30 + 20) / 2)  # lengths of a and b only
    assert value["all_tokens"] == pytest.approx((45 + 35) / 2)  # prompt and observations as well
    assert value["code_lines"] == pytest.approx((3 + 5) / 2)
    assert value["valid_code_ratio"] == pytest.approx(((1 / 2 + 0) / 2 + (0 + 1 / 2) / 2) / 2)  # by turns
    assert value["calls"] == pytest.approx((0.5 + 1.5) / 2)
    assert value["no_answer"] == pytest.approx((0.5 + 0) / 2)
    assert (table.problems, table.not_attempted, table.samples, table.unknown) == (3, 1, 4, 1)
    assert table.ends == {"answered": 0.75, "void": 0.25}


def test_a_benchmark_without_samples_has_no_numbers_but_zero_coverage():
    table = benchmark_table("own", [], ["a", "b"], [], 2)
    assert set(table.metrics) == {"coverage"} and table.metrics["coverage"].value == 0 and table.ends == {}


def test_differences_are_paired_by_the_problems_that_both_have():
    first = per_problem([sample("a", 0, "wrong"), sample("b", 0)], ["a", "b"], [], 1)
    second = per_problem([sample("b", 0), sample("a", 0), sample("z", 0)], ["b", "a", "z"], [], 1)
    paired = differences(first, second)["avg_at_k"]
    assert (paired.value, paired.better, paired.worse, paired.equal) == (0.5, 1, 0, 1)
    assert differences(first, per_problem([], ["z"], [], 1)) == {}


def test_lengths_have_no_upper_bound_and_one_problem_no_spread():
    table = benchmark_table("own", SAMPLES[:2], ["a"], [], 2)
    assert table.metrics["avg_at_k"].low == 0.0 and table.metrics["avg_at_k"].high == 1.0
    assert math.isinf(table.metrics["response_tokens"].high)
