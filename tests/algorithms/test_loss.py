"""Surrogate and policy loss against numbers worked out by hand."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from taorl_jax.algorithms.loss import AGGREGATIONS, policy_loss, surrogate, token_weight

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


def batch_of(old, advantages, mask, **columns):
    """What `policy_loss` reads; every loss token weighs 1."""
    columns |= {"old_logprobs": old, "advantages": advantages}
    given = {name: jnp.asarray(array, jnp.float32) for name, array in columns.items()}
    mask = jnp.asarray(mask, bool)
    return types.SimpleNamespace(**{"weights": mask.astype(jnp.float32)} | given, loss_mask=mask)


def loss_of(logprobs, old, advantages, mask, entropies=None, columns=None, **options):
    logprobs = jnp.asarray(logprobs, jnp.float32)
    entropies = jnp.zeros(logprobs.shape) if entropies is None else jnp.asarray(entropies, jnp.float32)
    batch = batch_of(old, advantages, mask, **columns or {})
    return policy_loss(logprobs, entropies, batch, **BOUNDS, **options)


def test_masked_rows_are_in_neither_sum_nor_denominator():
    # rows of 4 and 6 tokens, the second one masked
    mask = np.zeros((2, 6), bool)
    mask[0, :4] = True
    total, stats = loss_of(np.zeros((2, 6)), np.zeros((2, 6)), np.ones((2, 6)), mask)
    assert total == -4.0
    assert stats["ratio_mean"] == (4.0, 4.0)


@pytest.mark.parametrize("garbage", [-np.inf, np.nan, 1e30])
def test_what_is_masked_adds_nothing_to_value_or_gradient(garbage):
    mask = jnp.array([[True, False], [False, False]])
    logprobs = jnp.where(mask, -1.0, garbage)

    def total(logprobs, mask):
        advantages = jnp.full((2, 2), garbage).at[0, 0].set(2.0)
        old = jnp.where(mask, -1.0, garbage)
        return loss_of(logprobs, old, advantages, mask, jnp.where(mask, 1.0, garbage))[0]

    np.testing.assert_array_equal(jax.grad(total)(logprobs, mask), [[-2.0, 0], [0, 0]])
    nothing = jnp.zeros((2, 2), bool)
    assert total(logprobs, nothing) == 0
    np.testing.assert_array_equal(jax.grad(total)(logprobs, nothing), np.zeros((2, 2)))


def test_all_masked_has_zero_sums_and_denominators():
    total, stats = loss_of(np.full((2, 3), -np.inf), np.zeros((2, 3)), np.ones((2, 3)), np.zeros((2, 3)))
    assert total == 0
    assert all(pair == (0, 0) for pair in stats.values())


def test_stats_by_hand():
    ratios = np.array([[5.0, 0.5, 5.0, 1.0, 9.0]])
    advantages, mask = [[1.0, -1.0, -1.0, 1.0, 1.0]], [[1, 1, 1, 1, 0]]
    _, stats = loss_of(LN(ratios), np.zeros((1, 5)), advantages, mask, np.full((1, 5), 0.5))
    shares = {name: float(total) for name, (total, _) in stats.items()}
    kl = 2 * (4 - LN(5)) + (-0.5 + LN(2))
    assert shares == pytest.approx(
        {"clip_share_low": 1, "clip_share_high": 1, "clip_share_dual": 1, "ratio_mean": 11.5, "approx_kl": kl}
        | {"entropy": 2.0}
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
    for name, (_, count) in whole[1].items():
        assert sum(piece[1][name][1] for piece in pieces) == count == mask.sum()


@pytest.mark.parametrize(
    ("aggregation", "expected"),  # losses 1 a token; trajectories of 2 and 6 loss tokens, advantages 1 and 3
    [("token_mean", -(2 + 18) / 8), ("sequence_mean", -(1 + 3) / 2), ("constant", -(2 + 18) / (2 * 10))],
)
def test_aggregations_by_hand(aggregation, expected):
    pairs = [token_weight(aggregation, tokens, constant=10) for tokens in (2, 6)]
    mask = np.array([[1] * 2 + [0] * 4, [1] * 6])
    weights = mask * np.array([[pairs[0][0]], [pairs[1][0]]])
    total, _ = loss_of(
        np.zeros((2, 6)), np.zeros((2, 6)), [[1.0] * 6, [3.0] * 6], mask, columns={"weights": weights}
    )
    assert total / sum(share for _, share in pairs) == pytest.approx(expected)


def test_a_trajectory_without_loss_tokens_weighs_nothing_under_any_aggregation():
    assert {token_weight(name, 0, 10) for name in AGGREGATIONS} == {(0.0, 0.0)}
    with pytest.raises(ValueError, match="there are"):
        token_weight("mean", 3, 10)


def test_importance_weights_are_truncated_not_masked():
    """Trainer / sampler ratios 5 and 1/2 under a cap of 2: weights 2 and 1/2; one of two is affected."""
    total, stats = loss_of(
        [[0.0, 0.0]], [[0.0, 0.0]], [[1.0, 1.0]], [[1, 1]],
        columns={"sampler_logprobs": -LN([[5.0, 0.5]])}, importance_cap=2.0,
    )  # fmt: skip
    assert total == pytest.approx(-2.5)
    assert stats["importance_capped"] == (1.0, 2.0)
    assert float(stats["importance_mean"][0]) == pytest.approx(2.5)


def test_divergence_from_the_reference_and_entropy_by_hand():
    """k3 of log(reference / policy) = ln 2: 2 - 1 - ln 2; its slope by the log-prob: 1 - 2 = -1."""

    def total(logprobs, entropies):
        reference = {"reference_logprobs": LN([[2.0]])}
        return loss_of(
            logprobs, [[0.0]], [[0.0]], [[1]], entropies, reference,
            kl_coefficient=0.5, entropy_coefficient=0.25,
        )[0]  # fmt: skip

    value, slopes = jax.value_and_grad(total, argnums=(0, 1))(jnp.zeros((1, 1)), jnp.full((1, 1), 3.0))
    assert float(value) == pytest.approx(0.5 * (1 - LN(2)) - 0.25 * 3)
    assert [float(slope[0, 0]) for slope in slopes] == pytest.approx([-0.5, -0.25])
