"""Group-relative advantages (GRPO)."""

import jax.numpy as jnp

from taorl_jax.algorithms.masked import masked_mean, masked_std

EPSILON = 1e-6


def group_advantages(rewards_NxG, keep_NxG, baseline_NxG):
    """(reward - group mean) / (group std + 1e-6), with the unbiased std; 0 outside `keep_NxG`.

    Mean and std are those of the group's rewards under `baseline_NxG`: pass the kept rollouts (the default
    of this project; the kept advantages then sum to 0) or all judged ones (the released code of TAO-RL).
    A group with fewer than two baseline members, or with equal baseline rewards, says nothing about what
    is better: it gets exactly 0, and rounding over the epsilon cannot bring it back.

    Args:
      rewards_NxG: float; may be anything, NaN included, outside `keep_NxG` and `baseline_NxG`.
      keep_NxG: bool, the trajectories that enter the loss.
      baseline_NxG: bool, the trajectories that enter mean and std.

    Returns:
      advantages_NxG: float32.
    """
    rewards = jnp.where(keep_NxG | baseline_NxG, rewards_NxG, 0.0).astype(jnp.float32)
    mean = masked_mean(rewards, baseline_NxG, axis=1, keepdims=True)
    std = masked_std(rewards, baseline_NxG, axis=1, keepdims=True, unbiased=True)
    highest = jnp.max(jnp.where(baseline_NxG, rewards, -jnp.inf), axis=1, keepdims=True)
    lowest = jnp.min(jnp.where(baseline_NxG, rewards, jnp.inf), axis=1, keepdims=True)
    return jnp.where(keep_NxG & (highest > lowest), (rewards - mean) / (std + EPSILON), 0.0)
