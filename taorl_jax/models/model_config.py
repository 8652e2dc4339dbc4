"""The shape of a policy, read from a checkpoint's own `config.json`."""

import dataclasses
import json
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
    except KeyError as error:
        raise CheckpointError(f"{path} lacks {error}; copy it again from the model's own folder") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} has a value of the wrong type ({error})") from error


def parse_model_config(raw: dict) -> ModelConfig:
    """A model's `config.json`, already parsed, of transformers 4 or 5.

    Raises:
      CheckpointError: a setting that is not supported, by name.
      KeyError, TypeError, ValueError, AttributeError: a setting is missing or has the wrong type.
    """
    family = raw.get("model_type")
    if family not in ("qwen2", "qwen3", "llama"):
        raise CheckpointError(
            f"model_type={family!r} is not supported; the decoder knows qwen2 (and 2.5), qwen3 and llama"
        )
    sliding = [kind for kind in raw.get("layer_types") or () if kind != "full_attention"]
    for key, refused in {
        "use_sliding_window": bool(raw.get("use_sliding_window")),
        "layer_types": bool(sliding),
        "hidden_act": raw.get("hidden_act", "silu") != "silu",
        "attention_dropout": bool(raw.get("attention_dropout")),
        "quantization_config": raw.get("quantization_config") is not None,
    }.items():
        if refused:
            raise CheckpointError(f"{key}={raw.get(key)!r} is not supported")
    rope_theta, rope_scaling = _read_rope(raw)
    bias = bool(raw.get("attention_bias", False))
    model = ModelConfig(
        vocab_size=int(raw["vocab_size"]),
        hidden=int(raw["hidden_size"]),
        mlp=int(raw["intermediate_size"]),
        layers=int(raw["num_hidden_layers"]),
        heads=int(raw["num_attention_heads"]),
        kv_heads=int(raw.get("num_key_value_heads") or raw["num_attention_heads"]),
        head_dim=int(_head_dim(raw, family)),
        max_positions=int(raw["max_position_embeddings"]),
        rope_theta=rope_theta,
        norm_epsilon=float(raw["rms_norm_eps"]),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        model_type=family,
        qkv_bias=family == "qwen2" or bias,
        out_bias=family != "qwen2" and bias,
        mlp_bias=family == "llama" and bool(raw.get("mlp_bias", False)),
        query_key_norm=family == "qwen3",
        rope_scaling=rope_scaling,
    )
    if model.heads % model.kv_heads or model.head_dim % 2:
        raise CheckpointError(
            f"num_attention_heads={model.heads} must be a multiple of num_key_value_heads={model.kv_heads}, "
            f"and head_dim={model.head_dim} even"
        )
    return model


def _head_dim(raw: dict, family: str):
    if raw.get("head_dim"):
        return raw["head_dim"]
    if family == "qwen3":
        return 128  # the default of `Qwen3Config`, whatever the hidden size
    return raw["hidden_size"] // raw["num_attention_heads"]


def _read_rope(raw: dict) -> tuple[float, RopeScaling | None]:
    """(theta, scaling) from `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (4)."""
    key = "rope_parameters" if raw.get("rope_parameters") else "rope_scaling"
    settings = raw.get(key) or {}
    theta = float(settings.get("rope_theta", raw.get("rope_theta", 10_000.0)))
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind == "default":
        scaling = None
    elif kind == "linear":
        scaling = RopeScaling("linear", float(settings["factor"]))
    elif kind == "llama3":
        scaling = RopeScaling(
            "llama3",
            float(settings["factor"]),
            float(settings["low_freq_factor"]),
            float(settings["high_freq_factor"]),
            int(settings["original_max_position_embeddings"]),
        )
    else:
        raise CheckpointError(f"{key}={settings!r} is not supported; of scalings, linear and llama3 are")
    if settings.get("partial_rotary_factor", 1.0) != 1.0 or raw.get("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError("partial_rotary_factor is not supported: the whole head is rotated")
    return theta, scaling
