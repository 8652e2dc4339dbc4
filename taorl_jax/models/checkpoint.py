"""Hugging Face checkpoint folders: read straight into sharded arrays, and written back."""

import contextlib
import json
import math
import pathlib
import shutil

import jax
import numpy as np
import safetensors
import safetensors.numpy

from taorl_jax.models.model_config import CheckpointError, ModelConfig, read_model_config
from taorl_jax.models.transformer import abstract_params

# Our parameter -> the tensor's name, and how many of its leading axes are the tensor's input. A torch
# linear layer stores [out, in]; ours are [in..., out...], so that heads stay an axis of their own.
_LAYER = {
    ("attention_norm", "scale"): ("input_layernorm.weight", 0),
    ("mlp_norm", "scale"): ("post_attention_layernorm.weight", 0),
    ("attention", "query_kernel"): ("self_attn.q_proj.weight", 1),
    ("attention", "key_kernel"): ("self_attn.k_proj.weight", 1),
    ("attention", "value_kernel"): ("self_attn.v_proj.weight", 1),
    ("attention", "query_bias"): ("self_attn.q_proj.bias", 0),
    ("attention", "key_bias"): ("self_attn.k_proj.bias", 0),
    ("attention", "value_bias"): ("self_attn.v_proj.bias", 0),
    ("attention", "query_norm", "scale"): ("self_attn.q_norm.weight", 0),
    ("attention", "key_norm", "scale"): ("self_attn.k_norm.weight", 0),
    ("attention", "out_kernel"): ("self_attn.o_proj.weight", 2),
    ("attention", "out_bias"): ("self_attn.o_proj.bias", 0),
    ("mlp", "gate_kernel"): ("mlp.gate_proj.weight", 1),
    ("mlp", "up_kernel"): ("mlp.up_proj.weight", 1),
    ("mlp", "down_kernel"): ("mlp.down_proj.weight", 1),
    ("mlp", "gate_bias"): ("mlp.gate_proj.bias", 0),
    ("mlp", "up_bias"): ("mlp.up_proj.bias", 0),
    ("mlp", "down_bias"): ("mlp.down_proj.bias", 0),
}
_TOP = {
    ("embedding",): ("model.embed_tokens.weight", -1),
    ("unembedding",): ("lm_head.weight", -1),
    ("final_norm", "scale"): ("model.norm.weight", 0),
}


def _tensor_names(path: tuple[str, ...], layers: int) -> tuple[list[str], int]:
    """The tensors behind one parameter (one a layer if it is stacked), and its number of input axes."""
    if path[0] == "layers":
        name, inputs = _LAYER[path[1:]]
        return [f"model.layers.{i}.{name}" for i in range(layers)], inputs
    name, inputs = _TOP[path]
    return [name], inputs


def _torch_shape(shape, inputs: int) -> tuple[int, ...]:
    if inputs == -1:
        return tuple(shape)
    if inputs == 0:
        return (math.prod(shape),)
    return (math.prod(shape[inputs:]), math.prod(shape[:inputs]))


def _flat_slice(index, shape) -> slice:
    """The range that `index` covers of merged axes; only the first of them may be cut."""
    inner = math.prod(shape[1:])
    start, stop, _ = index[0].indices(shape[0])
    return slice(start * inner, stop * inner)


def _read_part(tensor, index, shape, inputs: int) -> np.ndarray:
    """Reads the part `index` of a parameter of `shape` from the tensor's file slice."""
    size = [len(range(*cut.indices(n))) for cut, n in zip(index, shape, strict=True)]
    if inputs == -1:
        return tensor[index[0], index[1]]
    if inputs == 0:
        return tensor[_flat_slice(index, shape)].reshape(size)
    rows = _flat_slice(index[inputs:], shape[inputs:])
    columns = _flat_slice(index[:inputs], shape[:inputs])
    return tensor[rows, columns].T.reshape(size)


def _path_names(path) -> tuple[str, ...]:
    return tuple(key.key for key in path)


class _Tensors:
    """All tensors of a folder, from one safetensors file or many, opened lazily and mapped."""

    def __init__(self, folder, stack: contextlib.ExitStack):
        files = sorted(pathlib.Path(folder).glob("*.safetensors"))
        if not files:
            raise CheckpointError(f"policy.checkpoint: {folder} has no *.safetensors file")
        self._file_of = {}
        for path in files:
            try:
                handle = stack.enter_context(safetensors.safe_open(path, framework="numpy"))
            except (safetensors.SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} can't be read ({error}); copy it again") from error
            self._file_of |= dict.fromkeys(handle.keys(), handle)

    def check(self, wanted: dict[str, tuple[int, ...]], folder):
        missing = sorted(set(wanted) - set(self._file_of))
        extra = sorted(set(self._file_of) - set(wanted))
        wrong = [
            f"{name} is {tuple(self[name].get_shape())}, not {shape}"
            for name, shape in wanted.items()
            if name in self._file_of and tuple(self[name].get_shape()) != shape
        ]
        if missing or extra or wrong:
            raise CheckpointError(
                f"{folder} does not fit its config.json: missing {missing}, unknown {extra}, shapes {wrong}"
            )

    def __getitem__(self, name):
        return self._file_of[name].get_slice(name)


def load_params(folder, shardings, dtype=np.float32):
    """Loads a policy; every device reads only its own shards.

    Args:
      folder: Hugging Face layout (config.json, *.safetensors).
      shardings: a pytree of jax.sharding.Sharding like the scanned decoder's parameters.
      dtype: of the arrays made.

    Raises:
      CheckpointError: a missing, unknown, mis-shaped or unreadable tensor, by name.
    """
    config = read_model_config(folder)
    shapes, _ = abstract_params(config)
    with contextlib.ExitStack() as stack:
        tensors = _Tensors(folder, stack)
        wanted = {}
        for path, leaf in jax.tree.leaves_with_path(shapes):
            names, inputs = _tensor_names(_path_names(path), config.layers)
            shape = leaf.shape[1:] if path[0].key == "layers" else leaf.shape
            wanted |= dict.fromkeys(names, _torch_shape(shape, inputs))
        tensors.check(wanted, folder)

        def load(path, leaf, sharding):
            stacked = path[0].key == "layers"
            names, inputs = _tensor_names(_path_names(path), config.layers)

            def read(index):
                if not stacked:
                    return _read_part(tensors[names[0]], index, leaf.shape, inputs).astype(dtype)
                parts = [_read_part(tensors[n], index[1:], leaf.shape[1:], inputs) for n in names[index[0]]]
                return np.stack(parts).astype(dtype)

            return jax.make_array_from_callback(leaf.shape, sharding, read)

        return jax.tree.map_with_path(load, shapes, shardings)


def save_params(params, config: ModelConfig, folder, like):
    """Writes a folder that `transformers` loads; config and tokenizer files are copied from `like`."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for path, leaf in jax.tree.leaves_with_path(params):
        names, inputs = _tensor_names(_path_names(path), config.layers)
        array = np.asarray(leaf)
        for name, value in zip(names, array if path[0].key == "layers" else [array], strict=True):
            shape = _torch_shape(value.shape, inputs)
            torch_value = value.reshape(shape[::-1]).T if inputs > 0 else value.reshape(shape)
            tensors[name] = np.ascontiguousarray(torch_value)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for source in pathlib.Path(like).iterdir():
        wanted = source.suffix in (".json", ".jinja", ".txt") and not source.name.endswith(".index.json")
        if wanted and source.resolve() != (folder / source.name).resolve():
            shutil.copyfile(source, folder / source.name)
    config_path = folder / "config.json"
    raw = json.loads(config_path.read_text())
    raw["dtype"] = str(jax.tree.leaves(params)[0].dtype)
    config_path.write_text(json.dumps(raw, indent=2) + "\n")
