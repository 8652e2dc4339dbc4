"""Drawing a token from softmax(logits / T), with its log-probability and the distribution's entropy.

Training draws from the whole distribution. Evaluation may truncate it; what is recorded then is of the
truncated, renormalised distribution: always of the one that the token was drawn from.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Truncation:
    """Which tokens an evaluation may draw; applied in this order, each to what the one before left.

    Attributes:
      top_k: only the k most likely; 0: all.
      top_p: the fewest most likely tokens with at least this share of the probability; 1: all.
      min_p: those with at least this share of the most likely token's probability; 0: all.
    """

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def off(self) -> bool:
        """Whether it leaves everything."""
        return self == WHOLE

    def __call__(self, scaled_SxV):
        """-inf in place of what is left out; of equal logits all or none stay."""
        if 0 < self.top_k < scaled_SxV.shape[-1]:
            lowest_Sx1 = jax.lax.top_k(scaled_SxV, self.top_k)[0][:, -1:]
            scaled_SxV = jnp.where(scaled_SxV >= lowest_Sx1, scaled_SxV, -jnp.inf)
        if self.top_p < 1:
            falling_SxV = jnp.sort(scaled_SxV, axis=-1, descending=True)
            probs_SxV = jax.nn.softmax(falling_SxV, axis=-1)
            kept_SxV = jnp.cumsum(probs_SxV, axis=-1) - probs_SxV < self.top_p
            lowest_Sx1 = jnp.min(jnp.where(kept_SxV, falling_SxV, jnp.inf), axis=-1, keepdims=True)
            scaled_SxV = jnp.where(scaled_SxV >= lowest_Sx1, scaled_SxV, -jnp.inf)
        if self.min_p > 0:
            lowest_Sx1 = jnp.max(scaled_SxV, axis=-1, keepdims=True) + math.log(self.min_p)
            scaled_SxV = jnp.where(scaled_SxV >= lowest_Sx1, scaled_SxV, -jnp.inf)
        return scaled_SxV


WHOLE = Truncation()


def request_key(seed, stream, step, prompt, sample):
    """The key of one episode: a function of these integers only, never of slots, batches or clocks."""
    key = jax.random.key(seed)
    for part in (stream, step, prompt, sample):
        key = jax.random.fold_in(key, part)
    return key


def token_uniforms(keys_S, positions_SxC):
    """[S, C, 2] uniform numbers in [0, 1), one pair a token, by the token's position in its episode."""

    def pair(key, position):
        return jax.random.uniform(jax.random.fold_in(key, position), (2,))

    return jax.vmap(jax.vmap(pair, in_axes=(None, 0)))(keys_S, positions_SxC)


def _first_above(weights_xN, uniform_x):
    """Inverse CDF: the first index whose cumulative weight exceeds uniform * total, never a zero weight."""
    cumulative_xN = jnp.cumsum(weights_xN, axis=-1)
    target_x1 = uniform_x[..., None] * cumulative_xN[..., -1:]
    index_x = jnp.sum(cumulative_xN <= target_x1, axis=-1)
    last_x = jnp.max(jnp.where(weights_xN > 0, jnp.arange(weights_xN.shape[-1]), 0), axis=-1)
    return jnp.minimum(index_x, last_x)


def sample(logits_SxV, temperature, uniforms_Sx2, truncation: Truncation = WHOLE):
    """Draws one token a row by a two-level inverse CDF: a block of the vocabulary, then a token in it.

    Two levels because a float32 cumulative sum over a whole large vocabulary is not monotonic.

    Args:
      logits_SxV: float32.
      temperature: scalar T; 0 takes the most likely token, whose log-prob and entropy are those of T = 1.
      uniforms_Sx2: one pair of uniform numbers a row.
      truncation: of evaluation; static.

    Returns:
      (tokens_S int32, logprobs_S nats, entropies_S nats) of softmax(logits / T), truncated.
    """
    S, V = logits_SxV.shape
    scaled_SxV = truncation(logits_SxV / jnp.where(temperature > 0, temperature, 1.0))
    log_normaliser_S = jax.nn.logsumexp(scaled_SxV, axis=-1)
    probs_SxV = jnp.exp(scaled_SxV - log_normaliser_S[:, None])
    # 0 * -inf would be NaN; a forbidden token adds nothing to the entropy.
    weighted_SxV = jnp.where(probs_SxV > 0, probs_SxV * scaled_SxV, 0.0)
    entropies_S = log_normaliser_S - jnp.sum(weighted_SxV, axis=-1)

    # Greedy: all weight on the highest logits, and of those the first (an argmax is slow on CPU).
    greedy_SxV = (logits_SxV == jnp.max(logits_SxV, axis=-1, keepdims=True)).astype(jnp.float32)
    weights_SxV = jnp.where(temperature > 0, probs_SxV, greedy_SxV)
    uniforms_Sx2 = jnp.where(temperature > 0, uniforms_Sx2, 0.0)

    block = 64 if V <= 4096 else 512
    weights_SxNxM = jnp.pad(weights_SxV, ((0, 0), (0, -V % block))).reshape(S, -1, block)
    chosen_S = _first_above(weights_SxNxM.sum(axis=-1), uniforms_Sx2[:, 0])
    weights_SxM = jnp.take_along_axis(weights_SxNxM, chosen_S[:, None, None], axis=1)[:, 0]
    tokens_S = (chosen_S * block + _first_above(weights_SxM, uniforms_Sx2[:, 1])).astype(jnp.int32)
    logprobs_S = jnp.take_along_axis(scaled_SxV, tokens_S[:, None], axis=-1)[:, 0] - log_normaliser_S
    return tokens_S, logprobs_S, entropies_S
