"""Surrogate and policy loss against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from taorl_jax.algorithms.loss import policy_loss, surrogate

BOUNDS = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}
LN = np.log


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),  # slope: d loss / d logprob = -A w where no bound holds, else 0
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.2, 1.0, -1.2, -1.2),
        (5.0, 1.0, -1.28, 0.0),  # upper bound
        (0.5, 1.0, -0.5, -0.5),  # falling below the lower bound with A > 0 is not clipped
        (5.0, -1.0, 3.0, 0.0),  # dual clip
        (2.5, -1.0, 2.5, 2.5),  # above the upper bound with A < 0, below the dual clip
        (0.5, -1.0, 0.8, 0.0),  # lower bound
        (0.9, -2.0, 1.8, 1.8),
        (5.0, 0.0, 0.0, 0.0),
    ],
)
def test_surrogate_by_hand(ratio, advantage, loss, slope):
    value, gradient = jax.value_and_grad(
        lambda logprob: surrogate(logprob, jnp.float32(-1.0), jnp.float32(advantage), **BOUNDS)
    )(jnp.float32(-1.0 + LN(ratio)))
    assert value == pytest.approx(loss, rel=1e-5)
    assert gradient == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("gap", [-1e6, 1e6])
def test_absurd_ratios_stay_finite(gap, advantage):
    arguments = (jnp.float32(gap), jnp.float32(0.0), jnp.float32(advantage))
    value, gradient = jax.value_and_grad(lambda *given: surrogate(*given, **BOUNDS))(*arguments)
    assert np.isfinite(value) and np.isfinite(gradient)


@pytest.mark.parametrize(
    "bounds", [{"clip_low": 0.0}, {"clip_low": 1.5}, {"clip_high": 0.0}, {"dual_clip": 1.0}]
)
def test_impossible_bounds_are_refused(bounds):
    with pytest.raises(ValueError, match="clip"):
        surrogate(jnp.zeros(1), jnp.zeros(1), jnp.ones(1), **{**BOUNDS, **bounds})


def loss_of(logprobs, old, advantages, mask):
    arrays = (jnp.asarray(array, jnp.float32) for array in (logprobs, old, advantages))
    return policy_loss(*arrays, jnp.asarray(mask, bool), **BOUNDS)


def test_denominator_counts_the_mask_and_nothing_else():
    # rows of 4 and 6 tokens, the second one masked
    mask = np.zeros((2, 6), bool)
    mask[0, :4] = True
    total, count, _ = loss_of(np.zeros((2, 6)), np.zeros((2, 6)), np.ones((2, 6)), mask)
    assert (total, count) == (-4.0, 4.0)


@pytest.mark.parametrize("garbage", [-np.inf, np.nan, 1e30])
def test_what_is_masked_adds_nothing_to_value_or_gradient(garbage):
    mask = jnp.array([[True, False], [False, False]])
    logprobs = jnp.where(mask, -1.0, garbage)

    def total(logprobs, mask):
        advantages = jnp.full((2, 2), garbage).at[0, 0].set(2.0)
        return policy_loss(logprobs, jnp.where(mask, -1.0, garbage), advantages, mask, **BOUNDS)[0]

    np.testing.assert_array_equal(jax.grad(total)(logprobs, mask), [[-2.0, 0], [0, 0]])
    nothing = jnp.zeros((2, 2), bool)
    assert total(logprobs, nothing) == 0
    np.testing.assert_array_equal(jax.grad(total)(logprobs, nothing), np.zeros((2, 2)))


def test_all_masked_has_zero_sums_and_denominators():
    total, count, stats = loss_of(
        np.full((2, 3), -np.inf), np.zeros((2, 3)), np.ones((2, 3)), np.zeros((2, 3))
    )
    assert (total, count) == (0, 0)
    assert all(pair == (0, 0) for pair in stats.values())


def test_stats_by_hand():
    ratios = np.array([[5.0, 0.5, 5.0, 1.0, 9.0]])
    advantages, mask = [[1.0, -1.0, -1.0, 1.0, 1.0]], [[1, 1, 1, 1, 0]]
    _, count, stats = loss_of(LN(ratios), np.zeros((1, 5)), advantages, mask)
    assert count == 4
    shares = {name: float(total) for name, (total, _) in stats.items()}
    kl = 2 * (4 - LN(5)) + (-0.5 + LN(2))
    assert shares == pytest.approx(
        {"clip_share_low": 1, "clip_share_high": 1, "clip_share_dual": 1, "ratio_mean": 11.5, "approx_kl": kl}
    )
    assert all(denominator == 4 for _, denominator in stats.values())


ROWS = arrays(np.float32, (4, 5), elements=st.floats(-3, 0, width=32))


@given(logprobs=ROWS, old=ROWS, advantages=ROWS, mask=arrays(bool, (4, 5)), rows=st.permutations(range(4)))
@settings(max_examples=15, deadline=None)
def test_sums_over_pieces_add_up_in_any_order(logprobs, old, advantages, mask, rows):
    whole = loss_of(logprobs, old, advantages + 1.5, mask)
    pieces = [
        loss_of(*(array[rows[part], :] for array in (logprobs, old, advantages + 1.5, mask)))
        for part in (slice(0, 2), slice(2, 4))
    ]
    np.testing.assert_allclose(sum(piece[0] for piece in pieces), whole[0], atol=1e-4)
    assert sum(piece[1] for piece in pieces) == whole[1]
