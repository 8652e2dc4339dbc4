"""A checkpoint folder into sharded device arrays, one tensor at a time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from taorl_jax.models.checkpoint.files import Weights, open_weights
from taorl_jax.models.checkpoint.names import Stored, stored, torch_shapes
from taorl_jax.models.model_config import read_model_config
from taorl_jax.models.transformer import abstract_params


def load_params(folder, shardings, dtype=np.float32):
    """Loads a policy; every process reads only the shards of its own devices.

    The host holds one tensor at a time (one layer's, of a stacked parameter), in the type of the file;
    transposing and casting happen on the way to the device and on it.

    Args:
      folder: Hugging Face layout (config.json, one or more *.safetensors of bfloat16, float16 or float32).
      shardings: a pytree of jax.sharding.Sharding like the scanned decoder's parameters.
      dtype: of the arrays made.

    Raises:
      CheckpointError: a missing, unknown, mis-shaped or unreadable tensor or file, by name.
    """
    config = read_model_config(folder)
    shapes, _ = abstract_params(config)
    with open_weights(folder) as weights:
        weights.require(torch_shapes(shapes, config.layers))

        def load(path, leaf, sharding):
            kind = stored(path, leaf.shape, config.layers)
            if kind.stacked:
                return _load_stack(weights, kind, leaf.shape, sharding, dtype)
            return _cast(_load_tensor(weights, kind, kind.names[0], sharding), dtype)

        return jax.tree.map_with_path(load, shapes, shardings)


def _load_tensor(weights: Weights, kind: Stored, name: str, sharding: Sharding) -> jax.Array:
    """One tensor in our layout and the file's type; returns when the host's copy is free again."""
    tensor = weights[name]
    array = jax.make_array_from_callback(kind.shape, sharding, lambda index: kind.read(tensor, index))
    return array.block_until_ready()


def _load_stack(weights: Weights, kind: Stored, shape, sharding: Sharding, dtype) -> jax.Array:
    """All layers of a parameter, each written into its place in one array."""
    of_layer = sharding
    if isinstance(sharding, NamedSharding):
        of_layer = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
    stack = jnp.zeros(shape, dtype, device=sharding)
    for i, name in enumerate(kind.names):
        stack = _write_layer(stack, _load_tensor(weights, kind, name, of_layer), np.int32(i))
    return stack


@functools.partial(jax.jit, donate_argnums=0)
def _write_layer(stack_LxN, layer_N, i):
    return jax.lax.dynamic_update_index_in_dim(stack_LxN, layer_N.astype(stack_LxN.dtype), i, axis=0)


@functools.partial(jax.jit, static_argnums=1)
def _cast(array, dtype):
    return array.astype(dtype)
