"""The shape of a policy, read from a checkpoint's own `config.json`."""

import dataclasses
import json
import math
import pathlib

from taorl_jax.errors import UserError


class CheckpointError(UserError, ValueError):
    """A checkpoint folder that can't be used; the message names what is wrong with it."""


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for longer contexts (Hugging Face `rope_type`).

    "linear" divides every frequency by `factor`. "llama3" does so for wavelengths above
    `original_positions / low_frequency_factor`, leaves those below `original_positions /
    high_frequency_factor`, and interpolates between.
    """

    kind: str
    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_positions: int = 8192


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a decoder; the families differ in nothing else.

    Attributes:
      model_type: as Hugging Face names the family: "qwen2" (also Qwen2.5), "qwen3" or "llama".
      qkv_bias, out_bias, mlp_bias: whether those projections have biases.
      query_key_norm: whether queries and keys are normalised a head before they are rotated.
    """

    vocab_size: int
    hidden: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-6
    tied_embeddings: bool = True
    model_type: str = "qwen2"
    qkv_bias: bool = True
    out_bias: bool = False
    mlp_bias: bool = False
    query_key_norm: bool = False
    rope_scaling: RopeScaling | None = None

    @property
    def parameters(self) -> int:
        """Number of trainable values."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer = 2 * self.hidden * (queries + keys) + 3 * self.hidden * self.mlp + 2 * self.hidden
        layer += self.qkv_bias * (queries + 2 * keys) + self.out_bias * self.hidden
        layer += self.mlp_bias * (2 * self.mlp + self.hidden) + self.query_key_norm * 2 * self.head_dim
        embeddings = self.vocab_size * self.hidden * (1 if self.tied_embeddings else 2)
        return self.layers * layer + embeddings + self.hidden


def read_model_config(folder) -> ModelConfig:
    """Reads `folder/config.json`.

    Raises:
      CheckpointError: there is no such file, it lacks a key, or it asks for something that this decoder
        does not do. Nothing is ever ignored.
    """
    path = pathlib.Path(folder) / "config.json"
    if not path.is_file():
        raise CheckpointError(
            f"policy.checkpoint: {folder} has no config.json; give a local folder in Hugging Face layout"
        )
    try:
        raw = json.loads(path.read_text())
    except ValueError as error:
        raise CheckpointError(f"{path} is no JSON ({error}); copy it again") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} holds no settings; copy it again")
    try:
        return parse_model_config(raw)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def parse_model_config(raw: dict) -> ModelConfig:
    """A model's `config.json`, already parsed, of transformers 4 or 5.

    Raises:
      CheckpointError: a setting that is missing, malformed or not supported, by name.
    """
    family = raw.get("model_type")
    if family not in ("qwen2", "qwen3", "llama"):
        raise CheckpointError(
            f"model_type={family!r} is not supported; the decoder knows qwen2 (and 2.5), qwen3 and llama"
        )
    layer_types = _value(raw, "layer_types", list, [])
    for key, refused in {
        "use_sliding_window": bool(raw.get("use_sliding_window")),
        "layer_types": any(kind != "full_attention" for kind in layer_types),
        "hidden_act": raw.get("hidden_act", "silu") != "silu",
        "attention_dropout": bool(raw.get("attention_dropout")),
        "quantization_config": raw.get("quantization_config") is not None,
    }.items():
        if refused:
            raise CheckpointError(f"{key}={raw.get(key)!r} is not supported")
    rope_theta, rope_scaling = _read_rope(raw)
    bias = _value(raw, "attention_bias", bool, False)
    hidden, heads = _value(raw, "hidden_size", int), _value(raw, "num_attention_heads", int)
    # `Qwen3Config` has this default whatever the hidden size.
    head_dim = 128 if family == "qwen3" else hidden // heads
    model = ModelConfig(
        vocab_size=_value(raw, "vocab_size", int),
        hidden=hidden,
        mlp=_value(raw, "intermediate_size", int),
        layers=_value(raw, "num_hidden_layers", int),
        heads=heads,
        kv_heads=_value(raw, "num_key_value_heads", int, heads),
        head_dim=_value(raw, "head_dim", int, head_dim),
        max_positions=_value(raw, "max_position_embeddings", int),
        rope_theta=rope_theta,
        norm_epsilon=_value(raw, "rms_norm_eps", float),
        tied_embeddings=_value(raw, "tie_word_embeddings", bool, False),
        model_type=family,
        qkv_bias=family == "qwen2" or bias,
        out_bias=family != "qwen2" and bias,
        mlp_bias=family == "llama" and _value(raw, "mlp_bias", bool, False),
        query_key_norm=family == "qwen3",
        rope_scaling=rope_scaling,
    )
    if model.heads % model.kv_heads or model.head_dim % 2:
        raise CheckpointError(
            f"num_attention_heads={model.heads} must be a multiple of num_key_value_heads={model.kv_heads}, "
            f"and head_dim={model.head_dim} even"
        )
    return model


def _value(settings: dict, key: str, kind: type, default=None):
    """`settings[key]` of `kind`, or `default` if it is absent or null; numbers must be positive."""
    value = settings.get(key)
    if value is None:
        if default is None:
            raise CheckpointError(f"{key} is missing; copy the file again from the model's own folder")
        return default
    kinds = (int, float) if kind is float else kind
    number = kind in (int, float)
    if not isinstance(value, kinds) or (number and (isinstance(value, bool) or not 0 < value < math.inf)):
        what = f"a positive {kind.__name__}" if number else f"a {kind.__name__}"
        raise CheckpointError(f"{key}={value!r} must be {what}")
    return kind(value)


def _read_rope(raw: dict) -> tuple[float, RopeScaling | None]:
    """(theta, scaling) from `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (4)."""
    new, old = _value(raw, "rope_parameters", dict, {}), _value(raw, "rope_scaling", dict, {})
    if new and old and new != old:
        raise CheckpointError(f"rope_scaling={old!r} contradicts rope_parameters={new!r}; remove one of them")
    settings, key = (new, "rope_parameters") if new else (old, "rope_scaling")
    theta = _value(settings, "rope_theta", float, _value(raw, "rope_theta", float, 10_000.0))
    kind = settings.get("rope_type", settings.get("type", "default"))
    if any(part.get("partial_rotary_factor") not in (None, 1.0) for part in (settings, raw)):
        raise CheckpointError("partial_rotary_factor is not supported: the whole head is rotated")
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", _value(settings, "factor", float))
    if kind == "llama3":
        return theta, RopeScaling(
            "llama3",
            _value(settings, "factor", float),
            _value(settings, "low_freq_factor", float),
            _value(settings, "high_freq_factor", float),
            _value(settings, "original_max_position_embeddings", int),
        )
    raise CheckpointError(f"{key}={settings!r} is not supported; of scalings, linear and llama3 are")
