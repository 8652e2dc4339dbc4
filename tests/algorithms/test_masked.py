"""Masked statistics against numpy on the entries that are left."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from taorl_jax.algorithms.masked import divide, masked_mean, masked_std, masked_sum, sum_and_count

VALUES = arrays(np.float32, (3, 7), elements=st.floats(-100, 100, width=32))
MASKS = arrays(bool, (3, 7))


@given(values=VALUES, mask=MASKS, garbage=st.sampled_from([np.nan, np.inf, -np.inf, 1e30]))
@settings(max_examples=40, deadline=None)
def test_equals_numpy_on_what_is_left_whatever_lies_under_the_mask(values, mask, garbage):
    left, dirty = values[mask].astype(np.float64), np.where(mask, values, np.float32(garbage))
    assert masked_sum(dirty, mask) == pytest.approx(left.sum(), abs=1e-2)
    assert masked_mean(dirty, mask) == pytest.approx(left.mean() if len(left) else 0.0, abs=1e-3)
    assert masked_std(dirty, mask) == pytest.approx(left.std() if len(left) else 0.0, abs=1e-3)
    unbiased = left.std(ddof=1) if len(left) > 1 else 0.0
    assert masked_std(dirty, mask, unbiased=True) == pytest.approx(unbiased, abs=1e-3)


def test_by_row_with_an_empty_row():
    values = jnp.array([[1.0, 3.0, np.nan], [np.nan, np.nan, np.nan]])
    mask = jnp.array([[True, True, False], [False, False, False]])
    np.testing.assert_array_equal(masked_mean(values, mask, axis=1), [2.0, 0.0])
    np.testing.assert_array_equal(masked_std(values, mask, axis=1), [1.0, 0.0])
    np.testing.assert_array_equal(masked_mean(values, mask, axis=1, keepdims=True), [[2.0], [0.0]])


def test_pairs_added_over_pieces_give_the_mean_of_the_whole():
    values, mask = jnp.arange(6.0), jnp.array([True, True, True, True, False, True])
    pieces = [sum_and_count(values[part], mask[part]) for part in (slice(0, 4), slice(4, 6))]
    total, count = (sum(column) for column in zip(*pieces, strict=True))
    assert (total, count) == (11.0, 5.0)
    assert divide(total, count) == jnp.float32(11 / 5)  # the mean of the pieces' means would be 3.25


def test_gradients_are_finite_at_an_empty_mask_and_at_zero_spread():
    for mask in (jnp.zeros(3, bool), jnp.ones(3, bool)):
        gradient = jax.grad(lambda values, mask=mask: masked_std(values, mask))(jnp.full(3, 2.0))
        np.testing.assert_array_equal(gradient, np.zeros(3))
