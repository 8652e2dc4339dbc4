"""Group advantages against numbers worked out by hand."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from taorl_jax.algorithms.advantages import group_advantages

NAN = float("nan")


def advantages(rewards, keep=None, baseline=None):
    rewards = jnp.asarray(rewards, jnp.float32)
    keep = jnp.ones(rewards.shape, bool) if keep is None else jnp.asarray(keep, bool)
    return np.asarray(
        group_advantages(rewards, keep, keep if baseline is None else jnp.asarray(baseline, bool))
    )


def test_by_hand():
    # mean 1/4; unbiased variance (9/16 + 3/16) / 3 = 1/4, std 1/2
    np.testing.assert_allclose(advantages([[1, 0, 0, 0]]), [[1.5, -0.5, -0.5, -0.5]], rtol=1e-5)


def test_baseline_of_the_kept_or_of_all_is_a_switch():
    rewards, keep = [[1, 0, 0, 0]], [[1, 1, 0, 0]]
    # kept only: mean 1/2, std 1/sqrt(2); over all: mean 1/4, std 1/2
    np.testing.assert_allclose(advantages(rewards, keep), [[0.5**0.5, -(0.5**0.5), 0, 0]], rtol=1e-5)
    np.testing.assert_allclose(advantages(rewards, keep, np.ones((1, 4))), [[1.5, -0.5, 0, 0]], rtol=1e-5)


def test_each_group_has_its_own_mean():
    both = advantages([[0, 1], [10, 11]])
    np.testing.assert_allclose(both[0], both[1], rtol=1e-5)
    np.testing.assert_allclose(both[0], [-(0.5**0.5), 0.5**0.5], rtol=1e-5)


@pytest.mark.parametrize("keep", [[[1, 0, 0, 0]], [[0, 0, 0, 0]]])
def test_fewer_than_two_in_the_baseline_gives_zero_and_no_nan(keep):
    np.testing.assert_array_equal(advantages([[1, NAN, NAN, NAN]], keep), np.zeros((1, 4)))


def test_one_member_in_the_baseline_gives_zero_to_all_that_are_kept():
    np.testing.assert_array_equal(advantages([[1, 0, 0]], [[1, 1, 1]], [[0, 1, 0]]), np.zeros((1, 3)))


def test_unknown_rewards_leave_the_others_alone():
    kept = advantages([[1, 0, NAN, 0]], [[1, 1, 0, 1]])
    np.testing.assert_allclose(kept[0, [0, 1, 3]], advantages([[1, 0, 0]])[0], rtol=1e-6)
    assert kept[0, 2] == 0


def test_an_equal_group_is_zero_next_to_a_mixed_one():
    both = advantages([[1, 1], [0, 1]])
    np.testing.assert_array_equal(both[0], [0, 0])
    assert both[1, 1] > 0.7


@given(reward=st.floats(-3, 3, width=32), size=st.sampled_from([3, 7, 16]))
@settings(max_examples=30, deadline=None)
def test_equal_rewards_give_exactly_zero(reward, size):
    # the float32 mean of equal numbers may differ from them in the last place: the epsilon would blow it up
    np.testing.assert_array_equal(advantages(np.full((2, size), reward)), np.zeros((2, size)))


@given(
    rewards=arrays(np.float32, (3, 6), elements=st.sampled_from([0.0, 1.0])),
    keep=arrays(bool, (3, 6)),
    order=st.permutations(range(6)),
)
@settings(max_examples=40, deadline=None)
def test_kept_advantages_sum_to_zero_and_follow_their_rollouts(rewards, keep, order):
    plain = advantages(rewards, keep)
    np.testing.assert_allclose(plain.sum(1), 0, atol=1e-5)
    assert not plain[~keep].any()
    np.testing.assert_allclose(advantages(rewards[:, order], keep[:, order]), plain[:, order], atol=1e-6)
