"""Scoring and updating the policy on the device: pure functions over packed batches."""

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from taorl_jax.algorithms.loss import policy_loss
from taorl_jax.algorithms.masked import divide
from taorl_jax.models import transformer
from taorl_jax.models.model_config import ModelConfig
from taorl_jax.training.packing import Packed
from taorl_jax.training.token_logprobs import token_logprobs


@flax.struct.dataclass
class TrainState:
    """What an update changes: float32 master weights and the optimiser's state."""

    params: dict
    opt_state: tuple


@dataclasses.dataclass(frozen=True)
class ForwardSettings:
    """How the policy is run in training.

    Attributes:
      dtype: of matrix products.
      temperature: T of the sampling distribution softmax(logits / T).
      attention: backend, see `models.attention`.
      remat: what a layer keeps for its backward pass, see `transformer.REMAT_POLICIES`.
      unroll: whether the layers are unrolled instead of scanned.
      head_chunk: tokens whose logits exist at a time.
    """

    dtype: Any = jnp.float32
    temperature: float = 1.0
    attention: str = "xla"
    remat: str = "none"
    unroll: bool = False
    head_chunk: int = 512


def policy_logprobs(model: ModelConfig, settings: ForwardSettings, params, micro: Packed):
    """(logprobs, entropies), [M, T] float32 nats, of a micro-batch's loss tokens; 0 elsewhere."""
    hidden_MxTxE, _ = transformer.forward(
        model,
        params,
        micro.tokens,
        micro.positions,
        segment_ids_BxT=micro.segment_ids,
        dtype=settings.dtype,
        attention=settings.attention,
        remat=settings.remat,
        unroll=settings.unroll,
    )
    return token_logprobs(
        params, hidden_MxTxE, micro.tokens, micro.loss_mask, settings.temperature, settings.head_chunk
    )


def score(model: ModelConfig, settings: ForwardSettings, params, batch: Packed, micro_batches):
    """(logprobs, entropies), both [N, M, T], of the first `micro_batches` of a batch."""

    def body(i, scores):
        values = policy_logprobs(model, settings, params, jax.tree.map(lambda x: x[i], batch))
        return jax.tree.map(lambda array, value: array.at[i].set(value), scores, values)

    zeros = jnp.zeros(batch.tokens.shape)
    return jax.lax.fori_loop(0, micro_batches, body, (zeros, zeros))


def accumulated_gradient(model, settings, loss: dict, params, batch: Packed, micro_batches):
    """Gradient of the loss' sum over micro-batches, and what to watch; neither is divided yet.

    Returns:
      (gradients like `params`, float32; dict of (sum, denominator) pairs, among them "loss").
    """

    def loss_sum(params, micro: Packed):
        logprobs, entropies = policy_logprobs(model, settings, params, micro)
        total, watched = policy_loss(logprobs, entropies, micro, **loss)
        return total, watched | {"loss": (total, jnp.sum(micro.denominators))}

    def accumulate(i, sums):
        micro = jax.tree.map(lambda x: x[i], batch)
        grads, watched = jax.grad(loss_sum, has_aux=True)(params, micro)
        return jax.tree.map(jnp.add, sums, (grads, watched))

    first = jax.tree.map(lambda x: x[0], batch)
    shapes = jax.eval_shape(lambda: loss_sum(params, first)[1])
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), (params, shapes))
    # A loop whose number of turns is data: few trajectories cost little and compile nothing.
    return jax.lax.fori_loop(0, micro_batches, accumulate, zeros)


def update(model, settings, optimiser, loss, state: TrainState, batch: Packed, micro_batches):
    """One optimiser update from one mini-batch.

    Gradients and statistics are summed over micro-batches and divided once, by the mini-batch's
    denominator, so the split into micro-batches does not matter. A gradient that is not finite, or a
    mini-batch without a loss token, changes nothing.

    Args:
      model: sizes of the policy.
      settings: how it is run.
      optimiser: of optax.
      loss: keyword arguments of `policy_loss`.
      state: parameters and optimiser state.
      batch: N micro-batches.
      micro_batches: how many of them hold a trajectory.

    Returns:
      (state, metrics: float32 scalars).
    """
    grads, watched = accumulated_gradient(model, settings, loss, state.params, batch, micro_batches)
    denominator, tokens = watched["loss"][1], watched["entropy"][1]
    grads = jax.tree.map(lambda g: g / jnp.maximum(denominator, 1e-9), grads)
    norm = optax.tree.norm(grads)
    finite, empty = jnp.isfinite(norm), tokens == 0
    updates, opt_state = optimiser.update(grads, state.opt_state, state.params)
    new_state = TrainState(optax.apply_updates(state.params, updates), opt_state)
    state = jax.tree.map(lambda new, old: jnp.where(finite & ~empty, new, old), new_state, state)
    metrics = {name: divide(*pair) for name, pair in watched.items()}
    metrics |= {"grad_norm": norm, "tokens": tokens}
    return state, metrics | {"skipped_updates": 1.0 - finite, "empty_updates": empty.astype(jnp.float32)}
