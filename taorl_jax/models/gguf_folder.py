"""A GGUF file into a Hugging Face folder: config, dequantised weights, tokenizer with chat template."""

import functools
import pathlib
import tempfile

import gguf
import jax.numpy as jnp
import numpy as np
from gguf.quants import dequantize

from taorl_jax.models.checkpoint.files import some
from taorl_jax.models.checkpoint.names import torch_shapes
from taorl_jax.models.checkpoint.write import (
    MAX_SHARD_BYTES,
    Tensor,
    replaced_checkpoint,
    write_json,
    write_weights,
)
from taorl_jax.models.gguf_tokenizer import build_tokenizer
from taorl_jax.models.model_config import CheckpointError, ModelConfig, parse_model_config
from taorl_jax.models.transformer import abstract_params

# `general.architecture` -> (class of transformers, names of its tensors in GGUF).
_FAMILIES = {
    "llama": ("LlamaForCausalLM", gguf.MODEL_ARCH.LLAMA),
    "qwen2": ("Qwen2ForCausalLM", gguf.MODEL_ARCH.QWEN2),
    "qwen3": ("Qwen3ForCausalLM", gguf.MODEL_ARCH.QWEN3),
}
_REQUIRED = object()
# What asks for a computation that is not the plain decoder's, unless it is 0.
_REFUSED = ("expert_count", "attention.sliding_window", "attention.logit_scale", "logit_scale")


def convert_gguf(path, folder, dtype="float32", max_bytes: int = MAX_SHARD_BYTES) -> ModelConfig:
    """Writes the folder, one dequantised tensor at a time.

    Args:
      path: a GGUF file of llama, qwen2 or qwen3 architecture with byte-level BPE.
      folder: made if need be.
      dtype: of the weights: float32 holds what quantised ones stand for exactly, bfloat16 half the bytes.
      max_bytes: of one file of weights.

    Raises:
      CheckpointError: no GGUF file, one that is cut short, or something that is not supported, by name.
    """
    path = pathlib.Path(path)
    try:
        reader = gguf.GGUFReader(path)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise CheckpointError(f"{path} can't be read as GGUF ({error}); fetch it again") from error
    try:
        _convert(reader, folder, jnp.dtype(dtype), max_bytes)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return parse_model_config(_config(reader))


def _convert(reader: gguf.GGUFReader, folder, dtype, max_bytes: int):
    raw = _config(reader) | {"dtype": str(dtype)}
    model = parse_model_config(raw)
    tensors = _tensors(reader, model, dtype)
    tokenizer = build_tokenizer(lambda name, *default: _field(reader, f"tokenizer.{name}", *default))
    with tempfile.TemporaryDirectory() as saved, replaced_checkpoint(folder) as path_of:
        tokenizer.save_pretrained(saved)
        for file in pathlib.Path(saved).iterdir():
            path_of(file.name).write_bytes(file.read_bytes())
        write_weights(path_of, tensors, max_bytes)
        write_json(path_of("generation_config.json"), _generation_config(reader))
        write_json(path_of("config.json"), raw)


def _field(reader: gguf.GGUFReader, name: str, default=_REQUIRED):
    field = reader.get_field(name)
    if field is not None:
        value = field.contents()
        # Shortest decimal of the same float32: 1e-05 is stored as 9.999999747378752e-06.
        return float(str(np.float32(value))) if isinstance(value, float) else value
    if default is _REQUIRED:
        raise CheckpointError(f"{name} is missing")
    return default


def _config(reader: gguf.GGUFReader) -> dict:
    """What `config.json` says."""
    family = _field(reader, "general.architecture")
    if family not in _FAMILIES:
        raise CheckpointError(
            f"general.architecture={family!r} is not supported; those known are {', '.join(_FAMILIES)}"
        )
    if _field(reader, "split.count", 1) > 1:
        raise CheckpointError("split.count is above 1: join its parts with `llama-gguf-split --merge` first")
    get = lambda name, *default: _field(reader, f"{family}.{name}", *default)
    for name in _REFUSED:
        if get(name, 0):
            raise CheckpointError(f"{family}.{name}={get(name)!r} is not supported")
    heads, hidden = get("attention.head_count"), get("embedding_length")
    head_dim = get("attention.key_length", hidden // heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if get(name, head_dim) != head_dim:
            raise CheckpointError(f"{family}.{name}={get(name)} is not supported beside heads of {head_dim}")
    rope = {"rope_type": get("rope.scaling.type", "none"), "rope_theta": get("rope.freq_base", 10_000.0)}
    if rope["rope_type"] == "none":
        rope["rope_type"] = "default"
    elif rope["rope_type"] == "linear":
        rope["factor"] = get("rope.scaling.factor")
    shapes = {tensor.name: tensor.shape for tensor in reader.tensors}
    if "token_embd.weight" not in shapes:
        raise CheckpointError("token_embd.weight is missing")
    return {
        "architectures": [_FAMILIES[family][0]],
        "model_type": family,
        "vocab_size": int(shapes["token_embd.weight"][1]),
        "hidden_size": hidden,
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "rope_parameters": rope,
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "mlp_bias": "blk.0.ffn_gate.bias" in shapes,
        "tie_word_embeddings": "output.weight" not in shapes,
    } | _special_ids(reader)


def _special_ids(reader) -> dict:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {key: _field(reader, f"tokenizer.ggml.{name}_token_id", None) for key, name in names.items()}


def _generation_config(reader) -> dict:
    """Stops at the end of the text and, where it is another token, at the end of the turn."""
    ids = _special_ids(reader)
    turn = _field(reader, "tokenizer.ggml.eot_token_id", None)
    return ids | {"eos_token_id": sorted({ids["eos_token_id"], turn} - {None})}


def _tensors(reader: gguf.GGUFReader, model: ModelConfig, dtype) -> list[Tensor]:
    """Every tensor of the Hugging Face folder, made when it is read."""
    stored = {tensor.name: tensor for tensor in reader.tensors}
    to_gguf = gguf.get_tensor_name_map(_FAMILIES[model.model_type][1], model.layers)
    wanted = {}
    for name, shape in torch_shapes(abstract_params(model)[0], model.layers).items():
        wanted[to_gguf.get_name(name, try_suffixes=(".weight", ".bias"))] = (name, shape)
    missing, unknown = sorted(wanted.keys() - stored), sorted(stored.keys() - wanted)
    wrong = [
        f"{name} {shape}"
        for name in wanted.keys() & stored.keys()
        if (shape := tuple(map(int, reversed(stored[name].shape)))) != wanted[name][1]
    ]
    if missing or unknown or wrong:
        raise CheckpointError(
            f"tensors missing: {some(missing) or 'none'}; not supported: {some(unknown) or 'none'}; "
            f"of another shape: {some(wrong) or 'none'}"
        )
    return [
        Tensor(name, shape, dtype, functools.partial(_read, stored[ours], name, model, dtype))
        for ours, (name, shape) in wanted.items()
    ]


def _read(tensor: gguf.ReaderTensor, name: str, model: ModelConfig, dtype) -> np.ndarray:
    value = dequantize(tensor.data, tensor.tensor_type)
    projection = name.split(".")[-2]
    if model.model_type == "llama" and projection in ("q_proj", "k_proj"):
        value = _half_split(value, model.heads if projection == "q_proj" else model.kv_heads)
    return value.astype(dtype)


def _half_split(value: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head from pairs side by side, as llama.cpp rotates them, to Hugging Face's two halves."""
    pairs = value.reshape(heads, -1, 2, *value.shape[1:])
    return pairs.swapaxes(1, 2).reshape(value.shape)
