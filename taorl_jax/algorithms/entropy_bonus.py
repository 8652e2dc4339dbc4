"""Entropy-guided bonus at tool boundaries (TAO-RL, section IV-B).

A token that follows a successful tool call and is among its trajectory's most uncertain ones has its
advantage scaled by 1 + a Z, where Z is its normalised entropy. All of it is constant to the gradient.
One row is one trajectory; entropies are in nats.
"""

from fractions import Fraction

import jax
import jax.numpy as jnp

from taorl_jax.algorithms.masked import divide, sum_and_count

# Entropies (nats) that differ by less than this are equal up to float32 rounding.
SMALLEST_STD = 1e-6


def post_tool_gate(entropies_BxT, post_tool_BxT, top_share):
    """The gate g_t: the top `top_share` of a row's post-tool tokens by entropy.

    Of n post-tool tokens, ceil(top_share * n) pass, at least one, and every token that ties with the last
    of them. A row without post-tool tokens has an empty gate. Depends on neither padding nor row width.

    Args:
      entropies_BxT: float, nats; anything outside the mask.
      post_tool_BxT: bool, M_post: the policy's tokens in turns that follow a valid call.
      top_share: q_H, a Python float in (0, 1], read as the nearest fraction with a denominator <= 10,000
        so that the ceiling is exact.

    Returns:
      gate_BxT: bool.

    Raises:
      ValueError: `top_share` outside (0, 1].
    """
    if not 0 < top_share <= 1:
        raise ValueError(f"the share of gated post-tool tokens must lie in (0, 1], not {top_share}")
    share = max(Fraction(top_share).limit_denominator(10_000), Fraction(1, 10_000))
    entropies = jnp.where(post_tool_BxT, entropies_BxT, -jnp.inf)
    available = jnp.sum(post_tool_BxT, axis=1, keepdims=True, dtype=jnp.int32)
    wanted = (available * share.numerator + share.denominator - 1) // share.denominator
    descending = jnp.sort(entropies, axis=1, descending=True)
    threshold = jnp.take_along_axis(descending, jnp.maximum(wanted, 1) - 1, axis=1)
    return post_tool_BxT & (entropies >= threshold)


def normalised_entropy(entropies_BxT, loss_mask_BxT, minibatch_B):
    """Z_t = (H_t - mean H) / std H over the loss tokens of the row's mini-batch (population std).

    One call serves all mini-batches of a step. A mini-batch whose entropies are all equal gets Z = 0.

    Args:
      entropies_BxT: float, nats; anything outside the mask.
      loss_mask_BxT: bool, the tokens that enter the loss.
      minibatch_B: int in [0, B), the mini-batch of each row.

    Returns:
      z_BxT: float32, 0 outside the mask, constant to the gradient.
    """

    def over_minibatch(values_BxT):
        totals_B, counts_B = (
            jax.ops.segment_sum(rows_B, minibatch_B, num_segments=len(minibatch_B))
            for rows_B in sum_and_count(values_BxT, loss_mask_BxT, axis=1)
        )
        return divide(totals_B, counts_B)[minibatch_B][:, None]

    entropies = jax.lax.stop_gradient(jnp.where(loss_mask_BxT, entropies_BxT, 0.0)).astype(jnp.float32)
    deviations = entropies - over_minibatch(entropies)
    std = jnp.sqrt(over_minibatch(deviations**2))
    return jnp.where(loss_mask_BxT & (std > SMALLEST_STD), deviations / jnp.maximum(std, SMALLEST_STD), 0.0)


def reshape_advantages(advantages_BxT, z_BxT, gate_BxT, coefficient):
    """A_t (1 + a g_t Z_t), constant to the gradient; tokens outside the gate keep A_t exactly.

    Args:
      advantages_BxT: float.
      z_BxT: float, normalised entropies.
      gate_BxT: bool.
      coefficient: a.
    """
    bonus = coefficient * jnp.where(gate_BxT, z_BxT, 0.0)
    return jax.lax.stop_gradient(advantages_BxT * (1.0 + bonus))
