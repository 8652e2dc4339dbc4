"""Sums, means and standard deviations over the `True` entries of an explicit mask.

Whatever lies under `False`, NaN included, never reaches a result or a gradient. An empty mask gives 0.
Losses and metrics travel as a (sum, denominator) pair and are divided once, after accumulation over
micro-batches and devices; only then is the result free of the way the batch was split.
"""

import jax.numpy as jnp


def masked_sum(values, mask, axis=None, keepdims=False):
    """Sum of `values` (float) where `mask` (bool, same shape)."""
    return jnp.sum(jnp.where(mask, values, 0.0), axis=axis, keepdims=keepdims)


def sum_and_count(values, mask, axis=None, keepdims=False):
    """The pair (sum of `values` where `mask`, number of `True` entries), both float32."""
    total = masked_sum(values, mask, axis, keepdims).astype(jnp.float32)
    return total, jnp.sum(mask, axis=axis, keepdims=keepdims, dtype=jnp.float32)


def divide(total, count):
    """`total / count`, and 0 where `count` is 0."""
    return jnp.where(count > 0, total / jnp.where(count > 0, count, 1.0), 0.0)


def masked_mean(values, mask, axis=None, keepdims=False):
    """Mean of `values` where `mask`; 0 for an empty mask."""
    return divide(*sum_and_count(values, mask, axis, keepdims))


def masked_std(values, mask, axis=None, keepdims=False, unbiased=False):
    """Standard deviation of `values` where `mask`.

    Population form (divide by n), or with `unbiased` the sample form (divide by n - 1). 0 where fewer
    than one value (two, if unbiased) is left. Its gradient at zero spread is 0, not NaN.
    """
    deviations = jnp.where(mask, values, 0.0) - masked_mean(values, mask, axis, keepdims=True)
    squares, count = sum_and_count(deviations**2, mask, axis, keepdims)
    variance = divide(squares, jnp.maximum(count - unbiased, 0.0))
    return jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
