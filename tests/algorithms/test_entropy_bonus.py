"""Gate, normalisation and bonus against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from taorl_jax.algorithms.entropy_bonus import normalised_entropy, post_tool_gate, reshape_advantages

ENTROPIES = arrays(np.float32, (4, 8), elements=st.floats(0, 6, width=32))
MASKS = arrays(bool, (4, 8))


def gate(entropies, post_tool, share=0.2):
    return np.asarray(post_tool_gate(jnp.asarray(entropies), jnp.asarray(post_tool, bool), share))


def test_gate_takes_the_top_share_of_post_tool_tokens_only():
    # 5 post-tool tokens: ceil(0.4 * 5) = 2 pass, whatever the entropies outside
    entropies = [[9.0, 0.1, 0.5, 0.3, 0.4, 0.2, 9.0]]
    np.testing.assert_array_equal(gate(entropies, [[0, 1, 1, 1, 1, 1, 0]], 0.4), [[0, 0, 1, 0, 1, 0, 0]])


@pytest.mark.parametrize(
    ("tokens", "share", "passed"),
    # 0.2 * 15 and 0.07 * 100 are above 3 and 7 in binary arithmetic: the ceiling must not see that
    [
        (1, 0.2, 1),
        (4, 0.2, 1),
        (5, 0.2, 1),
        (6, 0.2, 2),
        (15, 0.2, 3),
        (100, 0.07, 7),
        (7, 1.0, 7),
        (9, 1e-9, 1),
    ],
)
def test_gate_count_is_the_ceiling_and_at_least_one(tokens, share, passed):
    entropies = np.linspace(0, 1, tokens, dtype=np.float32)[None]
    assert gate(entropies, np.ones((1, tokens)), share).sum() == passed


def test_gate_keeps_ties_and_ranks_each_row_alone():
    entropies = [[0.7, 0.7, 0.1, 0.1, 0.1], [0.01, 0.02, 0.03, 0.02, 0.01]]
    np.testing.assert_array_equal(gate(entropies, np.ones((2, 5))), [[1, 1, 0, 0, 0], [0, 0, 1, 0, 0]])


def test_gate_is_empty_without_post_tool_tokens():
    assert not gate([[1.0, 2.0], [3.0, 4.0]], [[0, 0], [0, 1]])[0].any()


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
def test_gate_refuses_shares_that_are_none(share):
    with pytest.raises(ValueError, match="share"):
        gate([[1.0]], [[1]], share)


@pytest.mark.parametrize("width", [64, 640])
@pytest.mark.parametrize("padding", [0.0, 99.0, np.nan])
def test_gate_does_not_move_with_padding(width, padding):
    rng = np.random.default_rng(0)
    entropies, mask = rng.random((3, 20), np.float32), rng.random((3, 20)) < 0.6
    padded = np.full((3, width), padding, np.float32)
    padded[:, :20] = entropies
    wide_mask = np.zeros((3, width), bool)
    wide_mask[:, :20] = mask
    wide = gate(padded, wide_mask)
    np.testing.assert_array_equal(wide[:, :20], gate(entropies, mask))
    assert not wide[:, 20:].any()


@given(
    entropies=ENTROPIES, mask=MASKS, order=st.permutations(range(8)), garbage=st.sampled_from([0.0, np.nan])
)
@settings(max_examples=40, deadline=None)
def test_gate_follows_its_tokens_and_ignores_the_rest(entropies, mask, order, garbage):
    plain = gate(entropies, mask)
    dirty = np.where(mask, entropies, np.float32(garbage))
    np.testing.assert_array_equal(gate(dirty[:, order], mask[:, order]), plain[:, order])
    outside = np.where(mask & ~plain, entropies, -1).max(1)
    inside = np.where(plain, entropies, 99).min(1)
    assert (inside > outside).all() and not plain[~mask].any()


def test_normalised_entropy_by_hand_and_per_minibatch():
    # mini-batch 0: 1, 3 -> mean 2, std 1; mini-batch 1: 0, 0, 3 -> mean 1, population std sqrt(2)
    entropies = jnp.array([[1.0, 3.0, 50.0], [0.0, np.nan, 0.0], [3.0, 7.0, 7.0]])
    mask = jnp.array([[1, 1, 0], [1, 0, 1], [1, 0, 0]], bool)
    z = normalised_entropy(entropies, mask, jnp.array([0, 1, 1]))
    root = 2**0.5
    np.testing.assert_allclose(z, [[-1, 1, 0], [-1 / root, 0, -1 / root], [root, 0, 0]], rtol=1e-6)


def test_equal_entropies_and_empty_masks_give_zero():
    entropies = jnp.full((2, 7), 0.1)  # seven times 0.1 does not average to 0.1 in float32
    z = normalised_entropy(entropies, jnp.array([[True] * 7, [False] * 7]), jnp.array([0, 1]))
    np.testing.assert_array_equal(z, np.zeros((2, 7)))


@given(entropies=ENTROPIES, mask=MASKS, rows=st.permutations(range(4)))
@settings(max_examples=30, deadline=None)
def test_one_call_for_all_minibatches_equals_one_call_each(entropies, mask, rows):
    minibatch = np.array([0, 1, 0, 1])
    z = np.asarray(normalised_entropy(entropies, mask, minibatch))
    for which in (0, 1):
        alone = mask & (minibatch == which)[:, None]
        expected = np.asarray(normalised_entropy(entropies, alone, np.zeros(4, int)))
        np.testing.assert_allclose(z[minibatch == which], expected[minibatch == which], atol=1e-4)
    moved = normalised_entropy(entropies[rows,], mask[rows,], minibatch[rows,])
    np.testing.assert_allclose(moved, z[rows,], atol=1e-4)


def test_bonus_by_hand():
    # 2 (1 + 0.1 * 3), off the gate 2 as it was; negative advantages grow in size as well
    advantages, z = jnp.array([[2.0, 2.0, -1.0]]), jnp.array([[3.0, 3.0, 2.0]])
    reshaped = reshape_advantages(advantages, z, jnp.array([[True, False, True]]), 0.1)
    np.testing.assert_allclose(reshaped, [[2.6, 2.0, -1.2]], rtol=1e-6)
    np.testing.assert_array_equal(reshape_advantages(advantages, z, jnp.ones((1, 3), bool), 0.0), advantages)


def test_no_gradient_through_the_bonus():
    mask = jnp.ones((1, 3), bool)

    def total(entropies):
        z = normalised_entropy(entropies, mask, jnp.zeros(1, int))
        return reshape_advantages(jnp.ones((1, 3)), z, post_tool_gate(entropies, mask, 0.2), 0.5).sum()

    np.testing.assert_array_equal(jax.grad(total)(jnp.array([[0.1, 0.5, 0.9]])), np.zeros((1, 3)))


def test_under_jit():
    entropies, mask = jnp.array([[0.1, 0.9, 0.5]]), jnp.array([[True, True, False]])
    jitted = jax.jit(post_tool_gate, static_argnums=2)(entropies, mask, 0.5)
    np.testing.assert_array_equal(jitted, [[False, True, False]])
    z = jax.jit(normalised_entropy)(entropies, mask, jnp.zeros(1, int))
    np.testing.assert_allclose(z, [[-1, 1, 0]], rtol=1e-5)
