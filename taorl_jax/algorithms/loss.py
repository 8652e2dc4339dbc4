"""The policy loss: PPO's surrogate with asymmetric bounds (DAPO) and dual clip (Ye et al., 2020).

Beside it stand the options that papers differ in: how tokens are averaged, a penalty on the divergence from
a reference, an entropy term, and truncated importance weights for a sampler that differs from the trainer.
"""

import jax
import jax.numpy as jnp

from taorl_jax.algorithms.masked import sum_and_count

# Keeps exp() from overflowing. All that lies beyond is clipped anyway, except for a ratio below exp(-20)
# with a positive advantage, whose gradient is about 1e-9 of the usual one.
LARGEST_LOG_RATIO = 20.0

AGGREGATIONS = ("token_mean", "sequence_mean", "constant")


def _log_ratio(logprobs, old_logprobs):
    return jnp.clip(logprobs - old_logprobs, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def token_weight(aggregation: str, tokens: int, constant: int) -> tuple[float, float]:
    """What a trajectory's tokens weigh in the loss' sum, and what it adds to the denominator.

    Args:
      aggregation: "token_mean": all tokens of a mini-batch weigh the same (DAPO). "sequence_mean": all
        trajectories do (the original GRPO). "constant": a sum over tokens, by `constant` tokens a
        trajectory whatever its length (Dr. GRPO).
      tokens: loss tokens of the trajectory.
      constant: tokens, for "constant".

    Raises:
      ValueError: there is no such aggregation.
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"aggregation {aggregation!r}: there are {AGGREGATIONS}")
    if tokens == 0:
        return 0.0, 0.0
    if aggregation == "token_mean":
        return 1.0, float(tokens)
    return 1.0 / (tokens if aggregation == "sequence_mean" else constant), 1.0


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


def truncated_importance(old_logprobs, sampler_logprobs, cap: float):
    """min(pi_trainer / pi_sampler, cap), constant to the gradient: corrects for a sampler's own numerics."""
    return jax.lax.stop_gradient(jnp.minimum(jnp.exp(_log_ratio(old_logprobs, sampler_logprobs)), cap))


def policy_loss(
    logprobs,
    entropies,
    batch,
    *,
    clip_low,
    clip_high,
    dual_clip,
    kl_coefficient=0.0,
    entropy_coefficient=0.0,
    importance_cap=0.0,
):
    """Weighted sum of the loss over the mask, and what to watch.

    The caller divides once, by the denominator of the whole mini-batch. Under a False mask anything may
    stand, -inf and NaN included: it adds 0 to the sum and to the gradient.

    Args:
      logprobs: float, nats, any shape, of the policy being trained.
      entropies: float, nats, of its distributions.
      batch: arrays of that shape as attributes (`training.packing.Packed`): `loss_mask`, `old_logprobs`,
        `advantages`, `weights`, and, where they are needed, `reference_logprobs` and `sampler_logprobs`.
      clip_low: see `surrogate`.
      clip_high: see `surrogate`.
      dual_clip: see `surrogate`.
      kl_coefficient: of KL(policy || reference), by Schulman's non-negative estimate; 0: none.
      entropy_coefficient: of the entropy, which is raised; 0: none.
      importance_cap: of `truncated_importance`; 0: none.

    Returns:
      (sum, stats): a float32 scalar, and a dict of (sum, number of loss tokens) pairs: `entropy`,
      `clip_share_low`, `clip_share_high`, `clip_share_dual` (tokens at which that bound stops the gradient),
      `approx_kl` (w - 1 - ln w, nats; Schulman's estimate of KL(old || new)), `ratio_mean`, and, where they
      are used, `reference_kl`, `importance_mean` and `importance_capped`.
    """
    mask = batch.loss_mask

    def inside(array):
        return jnp.where(mask, array, 0.0)

    logprobs, entropies = inside(logprobs), inside(entropies)
    old_logprobs, advantages = inside(batch.old_logprobs), inside(batch.advantages)
    losses = surrogate(
        logprobs, old_logprobs, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    log_ratio = _log_ratio(logprobs, old_logprobs)
    ratio = jnp.exp(log_ratio)
    watched = {
        "entropy": jax.lax.stop_gradient(entropies),
        "clip_share_low": (advantages < 0) & (ratio < 1.0 - clip_low),
        "clip_share_high": (advantages > 0) & (ratio > 1.0 + clip_high),
        "clip_share_dual": (advantages < 0) & (ratio > dual_clip),
        "approx_kl": ratio - 1.0 - log_ratio,
        "ratio_mean": ratio,
    }
    if importance_cap:
        importance = truncated_importance(old_logprobs, inside(batch.sampler_logprobs), importance_cap)
        losses *= importance
        watched |= {"importance_mean": importance, "importance_capped": importance >= importance_cap}
    if kl_coefficient:
        log_reference = _log_ratio(inside(batch.reference_logprobs), logprobs)
        divergence = jnp.exp(log_reference) - 1.0 - log_reference
        losses += kl_coefficient * divergence
        watched["reference_kl"] = divergence
    if entropy_coefficient:
        losses -= entropy_coefficient * entropies
    total, _ = sum_and_count(losses * inside(batch.weights), mask)
    return total, {name: sum_and_count(values, mask) for name, values in watched.items()}
