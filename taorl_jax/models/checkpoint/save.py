"""Device arrays into a checkpoint folder that `transformers` loads, one tensor at a time."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from taorl_jax.models.checkpoint.names import Stored, stored
from taorl_jax.models.checkpoint.write import (
    MAX_SHARD_BYTES,
    Tensor,
    replaced_checkpoint,
    write_json,
    write_weights,
)
from taorl_jax.models.model_config import CheckpointError, ModelConfig, read_model_config

# What a checkpoint consists of beside its weights and its config.json.
COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
)


def save_params(params, config: ModelConfig, folder, like, dtype=None, max_bytes: int = MAX_SHARD_BYTES):
    """Writes a folder that `transformers` loads; the host holds one tensor at a time.

    An interrupted save leaves what the folder held before, or nothing that loads.

    Args:
      params: of the scanned decoder; every shard is on a device of this process.
      config: the policy's shape.
      folder: made if need be; may be `like`.
      like: the checkpoint folder whose config.json, generation config and tokenizer go along.
      dtype: of the tensors: bfloat16, float16 or float32; None: as the parameters are.
      max_bytes: of one file; above it the weights are split, with an index.

    Raises:
      CheckpointError: `like` is a checkpoint of another architecture.
      OSError: the disk is full or the folder is not writable.
    """
    if read_model_config(like) != config:
        raise CheckpointError(
            f"{like} is of another architecture than the parameters; name the folder they began as"
        )
    tensors = [
        tensor
        for path, leaf in jax.tree.leaves_with_path(params)
        for tensor in _tensors(stored(path, leaf.shape, config.layers), leaf, jnp.dtype(dtype or leaf.dtype))
    ]
    like = pathlib.Path(like)
    raw = json.loads((like / "config.json").read_text(encoding="utf-8"))
    raw.pop("torch_dtype", None)
    raw["dtype"] = str(tensors[0].dtype)
    with replaced_checkpoint(folder) as path_of:
        write_weights(path_of, tensors, max_bytes)
        for name in COMPANIONS:
            if (like / name).is_file():
                path_of(name).write_bytes((like / name).read_bytes())
        write_json(path_of("config.json"), raw)


def _tensors(kind: Stored, leaf, dtype) -> list[Tensor]:
    def read(i):
        return np.asarray(_to_torch(leaf, np.int32(i), kind.stacked, kind.inputs, dtype))

    return [
        Tensor(name, kind.torch_shape, dtype, functools.partial(read, i)) for i, name in enumerate(kind.names)
    ]


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _to_torch(leaf, i, stacked: bool, inputs: int, dtype):
    """Layer `i` of a stacked parameter, or all of another, as torch has it."""
    value = jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False) if stacked else leaf
    return Stored([], stacked, value.shape, inputs).to_torch(value).astype(dtype)
