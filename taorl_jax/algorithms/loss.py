"""The policy loss: PPO's surrogate with asymmetric bounds (DAPO) and dual clip (Ye et al., 2020)."""

import jax.numpy as jnp

from taorl_jax.algorithms.masked import sum_and_count

# Keeps exp() from overflowing. All that lies beyond is clipped anyway, except for a ratio below exp(-20)
# with a positive advantage, whose gradient is about 1e-9 of the usual one.
LARGEST_LOG_RATIO = 20.0


def _log_ratio(logprobs, old_logprobs):
    return jnp.clip(logprobs - old_logprobs, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def surrogate(logprobs, old_logprobs, advantages, *, clip_low, clip_high, dual_clip):
    """Loss per token, to be minimised; elementwise over arrays of one shape.

    With w = exp(logprobs - old_logprobs): max(-A w, -A clip(w, 1 - clip_low, 1 + clip_high)), and where
    A < 0 no more than -A dual_clip.

    Args:
      logprobs: float, nats, of the policy being trained, under softmax(logits / T).
      old_logprobs: float, nats, of the policy before the step's updates.
      advantages: float.
      clip_low: distance of the lower bound of w from 1, in (0, 1).
      clip_high: distance of the upper bound of w from 1.
      dual_clip: bound of w for negative advantages, above 1.

    Raises:
      ValueError: a bound outside its range.
    """
    if not (0 < clip_low < 1 and clip_high > 0 and dual_clip > 1):
        raise ValueError(
            "need 0 < clip_low < 1, clip_high > 0 and dual_clip > 1, "
            f"not {clip_low}, {clip_high} and {dual_clip}"
        )
    ratio = jnp.exp(_log_ratio(logprobs, old_logprobs))
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    base = jnp.maximum(-advantages * ratio, -advantages * clipped)
    return jnp.where(advantages < 0, jnp.minimum(base, -advantages * dual_clip), base)


def policy_loss(logprobs_BxT, old_logprobs_BxT, advantages_BxT, mask_BxT, *, clip_low, clip_high, dual_clip):
    """Sum of the surrogate over the mask, its number of tokens, and what to watch.

    The caller divides once, by the number of tokens of the whole mini-batch (token mean). Under a False
    mask anything may stand, -inf and NaN included: it adds 0 to the sum and to the gradient.

    Returns:
      (sum, denominator, stats): float32 scalars, and a dict of further (sum, denominator) pairs:
      `clip_share_low`, `clip_share_high`, `clip_share_dual` (tokens at which that bound stops the gradient),
      `approx_kl` (w - 1 - ln w, nats; Schulman's non-negative estimate of KL(old || new)) and `ratio_mean`.
    """
    logprobs, old_logprobs, advantages = (
        jnp.where(mask_BxT, array, 0.0) for array in (logprobs_BxT, old_logprobs_BxT, advantages_BxT)
    )
    losses = surrogate(
        logprobs, old_logprobs, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    log_ratio = _log_ratio(logprobs, old_logprobs)
    ratio = jnp.exp(log_ratio)
    watched = {
        "clip_share_low": (advantages < 0) & (ratio < 1.0 - clip_low),
        "clip_share_high": (advantages > 0) & (ratio > 1.0 + clip_high),
        "clip_share_dual": (advantages < 0) & (ratio > dual_clip),
        "approx_kl": ratio - 1.0 - log_ratio,
        "ratio_mean": ratio,
    }
    total, count = sum_and_count(losses, mask_BxT)
    return total, count, {name: sum_and_count(values, mask_BxT) for name, values in watched.items()}
