"""The policy's training on the device: place it, score tokens, update it, hand it to the sampler."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from taorl_jax.config import row_tokens
from taorl_jax.distributed import mesh as meshes
from taorl_jax.distributed.program import Program
from taorl_jax.models import checkpoint, transformer
from taorl_jax.models.attention import choose_backend
from taorl_jax.models.model_config import ModelConfig
from taorl_jax.rollout.policy_params import policy_params, policy_shardings
from taorl_jax.training.optimiser import make_optimiser
from taorl_jax.training.packing import Packed, batch_shape
from taorl_jax.training.update import ForwardSettings, TrainState, score, update

# Options of `policy_loss`; the rest of the config's section decides the tokens' weights.
_LOSS_OPTIONS = (
    "clip_low",
    "clip_high",
    "dual_clip",
    "kl_coefficient",
    "entropy_coefficient",
    "importance_cap",
)


def forward_settings(config: ConfigDict, platform: str) -> ForwardSettings:
    """How the policy is run in training on a platform, by the config."""
    dtype = jnp.dtype(config.policy.compute_dtype)
    return ForwardSettings(
        dtype=dtype,
        temperature=config.rollout.temperature,
        attention=choose_backend(config.policy.attention, platform, dtype),
        remat=config.train.remat,
        unroll=config.train.unroll_layers,
        head_chunk=config.train.head_chunk,
    )


class Learner:
    """Scoring and updating, compiled for one model, mesh and config. Making one allocates nothing."""

    def __init__(self, model: ModelConfig, mesh, config: ConfigDict):
        """Reads `policy`, `rollout`, `loss` and `train` of the config."""
        rules = meshes.training_rules(model.kv_heads, mesh.shape["tensor"], config.mesh.rules)
        self._scope = functools.partial(meshes.logical_axes, mesh, rules)
        self._model, self._mesh, self._config = model, mesh, config
        shapes, axes = transformer.abstract_params(model)
        self._optimiser = make_optimiser(config.train)
        self._shardings = self._state_shardings(shapes, axes, rules)
        self._settings = forward_settings(config, mesh.devices.flat[0].platform)
        loss = {name: config.loss[name] for name in _LOSS_OPTIONS}
        whole = meshes.replicated(mesh)
        self._rows = NamedSharding(mesh, PartitionSpec(None, dict(rules)["batch"]))
        self._score = jax.jit(functools.partial(score, model, self._settings), out_shardings=whole)
        self._update = jax.jit(
            functools.partial(update, model, self._settings, self._optimiser, loss),
            donate_argnums=0,
            out_shardings=(self._shardings, whole),
        )
        self._init = jax.jit(self._optimiser.init, out_shardings=self._shardings.opt_state)
        rollout_tensor = config.mesh.rollout_tensor or config.mesh.tensor
        self._rollout_mesh = meshes.rollout_mesh(mesh, rollout_tensor)
        to = policy_shardings(model, axes, meshes.over_hosts(mesh, rollout_tensor))
        cast = functools.partial(policy_params, self._settings.dtype)
        self._rollout_params = jax.jit(cast, out_shardings=to)

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

    def programs(self) -> list[Program]:
        """Every program of training with abstract arguments, as one step of the config calls it."""
        state, batch = self.abstract_state(), self._abstract_batch()
        count = jax.ShapeDtypeStruct((), jnp.int32, sharding=meshes.replicated(self._mesh))
        programs = {
            "init": (self._init, (state.params,)),
            "score": (self._score, (state.params, batch, count)),
            "update": (self._update, (state, batch, count)),
            "rollout_params": (self._rollout_params, (state.params,)),
        }
        return [
            Program(name, function, arguments, self._scope)
            for name, (function, arguments) in programs.items()
        ]

    def _abstract_batch(self) -> Packed:
        c = self._config
        rows = c.rollout.prompts // c.train.minibatches * c.rollout.samples
        shape = batch_shape(rows, row_tokens(c), c.train.micro_rows)

        def array(dtype, shape=shape):
            return jax.ShapeDtypeStruct(shape, dtype, sharding=self._rows)

        return Packed(
            tokens=array(np.int32),
            positions=array(np.int32),
            segment_ids=array(np.int32),
            loss_mask=array(bool),
            weights=array(np.float32),
            denominators=array(np.float32, shape[:2]),
            old_logprobs=array(np.float32),
            advantages=array(np.float32),
            sampler_logprobs=array(np.float32) if c.loss.importance_cap else None,
            reference_logprobs=array(np.float32) if c.loss.kl_coefficient else None,
        )

    def load(self, folder) -> TrainState:
        """A fresh state from a Hugging Face folder, read straight into shards."""
        params = checkpoint.load_params(folder, self._shardings.params)
        with self._scope():
            return TrainState(params, self._init(params))

    def load_reference(self, folder):
        """Parameters to score with and never to update, in the compute type and the training placement."""
        return checkpoint.load_params(folder, self._shardings.params, self._settings.dtype)

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
        """A packed batch on the mesh, its rows spread by the rule of "batch"; the same on every host."""
        return jax.tree.map(lambda x: meshes.put(x, self._rows), batch)

    def score(self, params, batch: Packed, micro_batches: int):
        """(logprobs, entropies) under the policy as it is now: see `score`."""
        with self._scope():
            return self._score(params, batch, micro_batches)

    def update(self, state: TrainState, batch: Packed, micro_batches: int):
        """One optimiser update; `state` is donated. See `update`."""
        with self._scope():
            return self._update(state, batch, micro_batches)

    def rollout_params(self, params):
        """The policy in its rollout placement, on the mesh of this host's sampler."""
        with self._scope():
            return meshes.to_local(self._rollout_params(params), self._rollout_mesh)
