"""Avg@K and Pass@K against enumeration and numbers worked out by hand."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from taorl_jax.evaluation.statistics import (
    avg_at_k,
    mean_interval,
    paired_difference,
    pass_at_k,
    pass_at_k_of_problem,
)


def test_one_of_four_right():
    assert pass_at_k_of_problem(4, 1, 4) == 1.0
    assert pass_at_k_of_problem(4, 1, 1) == 0.25
    assert pass_at_k_of_problem(4, 1, 2) == 0.5


@given(right=st.lists(st.booleans(), min_size=1, max_size=8), data=st.data())
@settings(max_examples=100, deadline=None)
def test_closed_form_is_the_share_of_draws_with_a_right_one(right, data):
    k = data.draw(st.integers(1, len(right)))
    draws = list(itertools.combinations(right, k))
    expected = sum(any(draw) for draw in draws) / len(draws)
    assert pass_at_k_of_problem(len(right), sum(right), k) == pytest.approx(expected)


def test_closed_form_is_stable_for_many_samples():
    expected = 1 - math.comb(9_990, 500) / math.comb(10_000, 500)  # exact integers
    assert pass_at_k_of_problem(10_000, 10, 500) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("samples", "correct", "k"), [(2, 0, 5), (0, 0, 1), (3, 4, 1), (3, -1, 1), (3, 1, 0)]
)
def test_what_cannot_be_estimated_is_refused(samples, correct, k):
    with pytest.raises(ValueError, match="not defined"):
        pass_at_k_of_problem(samples, correct, k)


def test_one_greedy_sample_has_no_pass_at_10():
    greedy = np.arange(164)[:, None] < 50
    assert pass_at_k(greedy, np.ones_like(greedy), 1).value == pytest.approx(50 / 164)
    with pytest.raises(ValueError, match="needs at least 10 samples"):
        pass_at_k(greedy, np.ones_like(greedy), 10)


def test_unknown_samples_leave_the_denominator_and_are_counted():
    # problem 0: 1 of 2 judged; problem 1: 2 of 4, one unknown slot marked right must not count
    right = np.array([[1, 0, 1, 1], [1, 1, 0, 0]], bool)
    judged = np.array([[1, 1, 0, 0], [1, 1, 1, 1]], bool)
    average = avg_at_k(right, judged)
    assert (average.value, average.problems, average.unknown) == (0.5, 2, 2)
    two = pass_at_k(right, judged, 2)
    assert two.value == pytest.approx((1 + 5 / 6) / 2)  # 1 - C(2,2)/C(4,2) = 5/6
    assert (two.problems, two.skipped, two.unknown) == (2, 0, 2)
    four = pass_at_k(right, judged, 4)  # only problem 1 has four judged samples
    assert (four.value, four.problems, four.skipped) == (1.0, 1, 1)


def test_interval_is_clustered_by_problem():
    # means 1, 0, 1/2, 1/2: mean 1/2, unbiased std sqrt(1/6); 1.96 sqrt(1/6) / 2 = 0.40008
    right = np.array([[1, 1], [0, 0], [1, 0], [0, 1]], bool)
    average = avg_at_k(right, np.ones_like(right))
    assert average.value == 0.5
    assert average.low == pytest.approx(0.5 - 0.400077, abs=1e-5)
    assert average.high == pytest.approx(0.5 + 0.400077, abs=1e-5)
    # the same problems sampled a hundred times as often tell no more about other problems
    more = avg_at_k(np.tile(right, (1, 100)), np.ones((4, 200), bool))
    assert (more.low, more.high) == pytest.approx((average.low, average.high))


def test_interval_of_one_problem_and_of_none():
    one = avg_at_k([[True, True, False, True]], np.ones((1, 4), bool))
    assert (one.value, one.low, one.high) == (0.75, 0.0, 1.0)
    none = avg_at_k(np.ones((2, 3), bool), np.zeros((2, 3), bool))
    assert math.isnan(none.value)
    assert (none.low, none.high, none.problems, none.unknown) == (0.0, 1.0, 0, 6)
    assert math.isnan(pass_at_k(np.ones((2, 3), bool), np.zeros((2, 3), bool), 2).value)


def test_shapes_must_agree():
    for statistic in (avg_at_k, lambda right, judged: pass_at_k(right, judged, 1)):
        with pytest.raises(ValueError, match="two arrays"):
            statistic(np.ones((2, 3), bool), np.ones((3, 2), bool))


@given(right=arrays(bool, (4, 5)), judged=arrays(bool, (4, 5)), order=st.permutations(range(5)))
@settings(max_examples=60, deadline=None)
def test_order_of_samples_does_not_matter_and_more_draws_never_hurt(right, judged, order):
    moved, plain = avg_at_k(right[:, order], judged[:, order]), avg_at_k(right, judged)
    np.testing.assert_equal(dataclasses.astuple(moved), dataclasses.astuple(plain))
    everything = np.ones_like(judged)
    values = [pass_at_k(right, everything, k).value for k in range(1, 6)]
    assert all(later >= earlier - 1e-12 for earlier, later in itertools.pairwise(values))
    assert values[0] == pytest.approx(avg_at_k(right, everything).value)


def beta_binomial(rng, runs, problems, samples):
    """Right answers, [runs, N, K] bool, of problems of chance ~ Beta(1, 2), whose mean is 1/3."""
    chance = rng.beta(1.0, 2.0, (runs, problems, 1))
    return rng.random((runs, problems, samples)) < chance


@pytest.mark.parametrize("problems", [30, 272])
def test_intervals_cover_the_true_mean_as_often_as_they_say(problems):
    rng = np.random.default_rng(0)
    means = beta_binomial(rng, 2000, problems, 16).mean(-1)
    intervals = [mean_interval(means_N, 0.0, 1.0) for means_N in means]
    covered = np.mean([interval.low <= 1 / 3 <= interval.high for interval in intervals])
    assert 0.925 < covered < 0.965  # 95 %, less what the normal approximation costs at 30 problems


def test_intervals_agree_with_a_bootstrap_over_problems():
    rng = np.random.default_rng(1)
    means_N = beta_binomial(rng, 1, 272, 16)[0].mean(-1)
    drawn = means_N[rng.integers(0, 272, (20_000, 272))].mean(-1)
    interval = mean_interval(means_N, 0.0, 1.0)
    assert (interval.low, interval.high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.002)


def test_pass_at_k_has_an_interval_over_problems():
    right = np.array([[1, 0], [0, 0], [1, 1], [0, 0]], bool)
    two = pass_at_k(right, np.ones_like(right), 2)  # 1, 0, 1, 0: the bounds are cut to [0, 1]
    assert (two.value, two.low, two.high) == pytest.approx((0.5, 0.0, 1.0), abs=0.07)
    many = pass_at_k(np.tile(right, (25, 1)), np.ones((100, 2), bool), 2)
    margin = 1.959964 * (25 / 99) ** 0.5 / 10  # unbiased variance of 50 ones and 50 zeros: 25 / 99
    assert (many.low, many.high) == pytest.approx((0.5 - margin, 0.5 + margin))


def test_none_right_is_no_proof_that_none_will_be():
    interval = mean_interval(np.zeros(30), 0.0, 1.0)
    assert (interval.low, interval.value) == (0.0, 0.0)
    assert (1 - interval.high) ** 30 == pytest.approx(0.025)
    assert mean_interval(np.ones(30), 0.0, 1.0).low == pytest.approx(1 - interval.high)


def test_pairing_sees_what_two_intervals_do_not():
    rng = np.random.default_rng(2)
    hard_N = rng.random(200)
    paired = paired_difference(hard_N, np.clip(hard_N + 0.03 + rng.normal(0, 0.02, 200), 0, 1))
    assert paired.sign == "+" and paired.low > 0 and paired.better > 150
    assert mean_interval(hard_N).high > mean_interval(hard_N + 0.03).low  # they overlap by far
    back = paired_difference(hard_N + 0.03, hard_N)
    assert (back.sign, back.worse) == ("-", 200)
    assert paired_difference([0, 1, 0], [1, 0, 0]).sign == ""
    with pytest.raises(ValueError, match="one number a problem"):
        paired_difference([1.0], [1.0, 2.0])
