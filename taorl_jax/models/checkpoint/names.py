"""Our parameters and Hugging Face's tensors: which belong together, and how one is laid out in the other."""

import math
from typing import NamedTuple

import jax
import numpy as np

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


class Stored(NamedTuple):
    """How one parameter is stored.

    Attributes:
      names: its tensors, one a layer if the parameter is stacked.
      stacked: whether its leading axis counts the layers.
      shape: of the parameter, or of one layer of it.
      inputs: how many leading axes of `shape` are the torch tensor's input; -1: stored as it is.
    """

    names: list[str]
    stacked: bool
    shape: tuple[int, ...]
    inputs: int

    @property
    def torch_shape(self) -> tuple[int, ...]:
        """Shape of each tensor."""
        if self.inputs == -1:
            return self.shape
        if self.inputs == 0:
            return (math.prod(self.shape),)
        return (math.prod(self.shape[self.inputs :]), math.prod(self.shape[: self.inputs]))

    def cut(self, index: tuple[slice, ...]) -> tuple[slice, ...]:
        """The part of the tensor that holds the part `index` of `shape`."""
        if self.inputs == -1:
            return index
        if self.inputs == 0:
            return (_flat_slice(index, self.shape),)
        return (
            _flat_slice(index[self.inputs :], self.shape[self.inputs :]),
            _flat_slice(index[: self.inputs], self.shape[: self.inputs]),
        )

    def as_torch(self, part: np.ndarray) -> np.ndarray:
        """A contiguous part of the parameter, viewed in the tensor's layout."""
        if self.inputs == -1:
            return part
        if self.inputs == 0:
            return part.reshape(-1)
        return part.reshape(math.prod(part.shape[: self.inputs]), -1).T

    def to_torch(self, array):
        """An array of `shape` -> the tensor (numpy or jax)."""
        if self.inputs > 0:
            return array.reshape(self.torch_shape[::-1]).T
        return array.reshape(self.torch_shape)


def stored(path, shape, layers: int) -> Stored:
    """How the parameter at a key path of the scanned decoder, of this shape, is stored."""
    keys = tuple(key.key for key in path)
    if keys[0] == "layers":
        name, inputs = _LAYER[keys[1:]]
        names = [f"model.layers.{i}.{name}" for i in range(layers)]
        return Stored(names, True, tuple(shape[1:]), inputs)
    name, inputs = _TOP[keys]
    return Stored([name], False, tuple(shape), inputs)


def torch_shapes(shapes, layers: int) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape, of a whole tree of parameter shapes."""
    kinds = [stored(path, leaf.shape, layers) for path, leaf in jax.tree.leaves_with_path(shapes)]
    return {name: kind.torch_shape for kind in kinds for name in kind.names}


def _flat_slice(index, shape) -> slice:
    """The range that `index` covers of merged axes; only the first of them may be cut."""
    inner = math.prod(shape[1:])
    start, stop, _ = index[0].indices(shape[0])
    return slice(start * inner, stop * inner)
