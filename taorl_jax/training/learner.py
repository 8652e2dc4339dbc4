"""The policy's training on the device: place it, score tokens, update it, hand it to the sampler."""

import functools

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from taorl_jax.algorithms.loss import policy_loss
from taorl_jax.algorithms.masked import divide
from taorl_jax.distributed import mesh as meshes
from taorl_jax.models import checkpoint, transformer
from taorl_jax.models.attention import choose_backend
from taorl_jax.models.model_config import ModelConfig
from taorl_jax.rollout.policy_params import policy_params, policy_shardings
from taorl_jax.training.packing import Packed


@flax.struct.dataclass
class TrainState:
    """What an update changes: float32 master weights and the optimiser's state."""

    params: dict
    opt_state: tuple


def token_logprobs(model, dtype, attention, params, tokens_BxT, positions_BxT, segment_ids_BxT, temperature):
    """Log-prob of every token given those before it in its segment, and the entropy it was drawn with.

    Both in nats, of softmax(logits / T) as in sampling. What stands at a segment's first token is
    meaningless: nobody sampled it.
    """
    hidden_BxTxE, _ = transformer.forward(
        model,
        params,
        tokens_BxT,
        positions_BxT,
        dtype=dtype,
        attention=attention,
        segment_ids_BxT=segment_ids_BxT,
    )
    logits_BxTxV = transformer.unembed(params, hidden_BxTxE[:, :-1]) / temperature
    all_logprobs_BxTxV = jax.nn.log_softmax(logits_BxTxV)
    logprobs_BxT = jnp.take_along_axis(all_logprobs_BxTxV, tokens_BxT[:, 1:, None], axis=-1)[..., 0]
    entropies_BxT = -jnp.sum(jnp.exp(all_logprobs_BxTxV) * all_logprobs_BxTxV, axis=-1)
    return tuple(jnp.pad(x, ((0, 0), (1, 0))) for x in (logprobs_BxT, entropies_BxT))


def score(model, dtype, attention, temperature, params, batch: Packed, micro_batches):
    """(logprobs, entropies), both [N, M, T], of the first `micro_batches` of a batch."""

    def body(i, scores):
        micro = jax.tree.map(lambda x: x[i], batch)
        values = token_logprobs(
            model, dtype, attention, params, micro.tokens, micro.positions, micro.segment_ids, temperature
        )
        return jax.tree.map(lambda array, value: array.at[i].set(value), scores, values)

    zeros = jnp.zeros(batch.tokens.shape)
    return jax.lax.fori_loop(0, micro_batches, body, (zeros, zeros))


def update(
    model,
    dtype,
    attention,
    temperature,
    optimiser,
    loss,
    state: TrainState,
    batch: Packed,
    micro_batches,
):
    """One optimiser update from one mini-batch: global token mean, then AdamW.

    Gradients and statistics are summed over micro-batches and divided once, by the mini-batch's number of
    loss tokens, so the split into micro-batches does not matter. A gradient that is not finite changes
    nothing.

    Returns:
      (state, metrics: float32 scalars).
    """

    def loss_sum(params, micro: Packed):
        logprobs, entropies = token_logprobs(
            model, dtype, attention, params, micro.tokens, micro.positions, micro.segment_ids, temperature
        )
        total, count, watched = policy_loss(
            logprobs, micro.old_logprobs, micro.advantages, micro.loss_mask, **loss
        )
        entropy = (jnp.sum(jnp.where(micro.loss_mask, jax.lax.stop_gradient(entropies), 0.0)), count)
        return total, watched | {"loss": (total, count), "entropy": entropy}

    def accumulate(i, sums):
        micro = jax.tree.map(lambda x: x[i], batch)
        (_, watched), grads = jax.value_and_grad(loss_sum, has_aux=True)(state.params, micro)
        return jax.tree.map(jnp.add, sums, (grads, watched))

    first = jax.tree.map(lambda x: x[0], batch)
    shapes = jax.eval_shape(lambda: loss_sum(state.params, first)[1])
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), (state.params, shapes))
    grads, watched = jax.lax.fori_loop(0, micro_batches, accumulate, zeros)

    tokens = watched["loss"][1]
    grads = jax.tree.map(lambda g: g / jnp.maximum(tokens, 1.0), grads)
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(norm)
    updates, opt_state = optimiser.update(grads, state.opt_state, state.params)
    new_state = TrainState(optax.apply_updates(state.params, updates), opt_state)
    state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), new_state, state)
    metrics = {name: divide(*pair) for name, pair in watched.items()}
    return state, metrics | {"grad_norm": norm, "skipped_updates": 1.0 - finite, "tokens": tokens}


def make_optimiser(train: ConfigDict) -> optax.GradientTransformation:
    """AdamW with global-norm clipping; `train` is that part of the config."""
    peak, warmup, decay = train.learning_rate, train.warmup_updates, train.decay_updates
    rise = optax.linear_schedule(peak / (warmup + 1), peak, warmup)
    fall = optax.linear_schedule(peak, 0.0, decay) if decay else optax.constant_schedule(peak)
    schedule = optax.join_schedules([rise, fall], [warmup])
    return optax.chain(
        optax.clip_by_global_norm(train.grad_clip),
        optax.adamw(schedule, b1=train.beta1, b2=train.beta2, weight_decay=train.weight_decay),
    )


class Learner:
    """The functions above, compiled for one model, mesh and config."""

    def __init__(self, model: ModelConfig, mesh, config: ConfigDict):
        """Reads `policy`, `rollout.temperature`, `loss` and `train` of the config."""
        rules = meshes.training_rules(model.kv_heads, mesh.shape["tensor"])
        self._scope = functools.partial(meshes.logical_axes, mesh, rules)
        self._model, self._mesh = model, mesh
        shapes, axes = transformer.abstract_params(model)
        self._optimiser = make_optimiser(config.train)
        self._shardings = self._state_shardings(shapes, axes, rules)
        dtype = jnp.dtype(config.policy.compute_dtype)
        platform = mesh.devices.flat[0].platform
        attention = choose_backend(config.policy.attention, platform, dtype)
        whole = meshes.replicated(mesh)
        self._rows = NamedSharding(mesh, PartitionSpec(None, ("data", "fsdp")))
        self._score = jax.jit(
            functools.partial(score, model, dtype, attention, config.rollout.temperature), out_shardings=whole
        )
        self._update = jax.jit(
            functools.partial(
                update,
                model,
                dtype,
                attention,
                config.rollout.temperature,
                self._optimiser,
                dict(config.loss),
            ),
            donate_argnums=0,
            out_shardings=(self._shardings, whole),
        )
        to = policy_shardings(model, axes, mesh)
        self._rollout_params = jax.jit(functools.partial(policy_params, dtype), out_shardings=to)

    def _state_shardings(self, shapes, axes, rules) -> TrainState:
        params = meshes.param_shardings(axes, self._mesh, rules)
        opt_state = optax.tree.map_params(
            self._optimiser,
            lambda _, sharding: sharding,
            jax.eval_shape(self._optimiser.init, shapes),
            params,
            transform_non_params=lambda _: meshes.replicated(self._mesh),
        )
        return TrainState(params, opt_state)

    def load(self, folder) -> TrainState:
        """A fresh state from a Hugging Face folder, read straight into shards."""
        params = checkpoint.load_params(folder, self._shardings.params)
        with self._scope():
            opt_state = jax.jit(self._optimiser.init, out_shardings=self._shardings.opt_state)(params)
        return TrainState(params, opt_state)

    def abstract_state(self) -> TrainState:
        """Shapes and shardings of the state, for restoring a checkpoint."""
        shapes, _ = transformer.abstract_params(self._model)
        state = jax.eval_shape(lambda p: TrainState(p, self._optimiser.init(p)), shapes)
        return jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            state,
            self._shardings,
        )

    def place(self, batch: Packed) -> Packed:
        """A packed batch on the mesh, rows over `data` and `fsdp`."""
        return jax.device_put(batch, self._rows)

    def score(self, params, batch: Packed, micro_batches: int):
        """(logprobs, entropies) under the policy as it is now: see `score`."""
        with self._scope():
            return self._score(params, batch, micro_batches)

    def update(self, state: TrainState, batch: Packed, micro_batches: int):
        """One optimiser update; `state` is donated. See `update`."""
        with self._scope():
            return self._update(state, batch, micro_batches)

    def rollout_params(self, params):
        """The policy in its rollout placement."""
        with self._scope():
            return self._rollout_params(params)
