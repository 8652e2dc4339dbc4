"""The shape of a policy, read from a checkpoint's own `config.json`."""

import dataclasses
import json
import pathlib

from taorl_jax.errors import UserError


class CheckpointError(UserError, ValueError):
    """A checkpoint folder that can't be used; the message names what is wrong with it."""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a Qwen2-style decoder (Hugging Face `Qwen2Config`)."""

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

    @property
    def parameters(self) -> int:
        """Number of trainable values."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        biases = self.head_dim * (self.heads + 2 * self.kv_heads)
        layer = attention + biases + 3 * self.hidden * self.mlp + 2 * self.hidden
        embeddings = self.vocab_size * self.hidden * (1 if self.tied_embeddings else 2)
        return self.layers * layer + embeddings + self.hidden


def read_model_config(folder) -> ModelConfig:
    """Reads `folder/config.json`.

    Raises:
      CheckpointError: there is no such file, or it asks for something that this decoder does not do.
        Nothing is ever ignored.
    """
    path = pathlib.Path(folder) / "config.json"
    if not path.is_file():
        raise CheckpointError(
            f"policy.checkpoint: {folder} has no config.json; give a local folder in Hugging Face layout"
        )
    raw = json.loads(path.read_text())
    rope = raw.get("rope_parameters") or {"rope_theta": raw.get("rope_theta", 10_000.0)}
    scaling = raw.get("rope_scaling") or {}
    unsupported = {
        "model_type": raw.get("model_type") != "qwen2",
        "use_sliding_window": bool(raw.get("use_sliding_window")),
        "rope_scaling": scaling.get("rope_type", scaling.get("type", "default")) != "default",
        "rope_parameters": rope.get("rope_type", "default") != "default",
        "hidden_act": raw.get("hidden_act", "silu") != "silu",
    }
    for key, refused in unsupported.items():
        if refused:
            raise CheckpointError(f"{path}: {key}={raw.get(key)!r} is not supported")
    return ModelConfig(
        vocab_size=raw["vocab_size"],
        hidden=raw["hidden_size"],
        mlp=raw["intermediate_size"],
        layers=raw["num_hidden_layers"],
        heads=raw["num_attention_heads"],
        kv_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
        head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        max_positions=raw.get("max_position_embeddings", 32_768),
        rope_theta=float(rope["rope_theta"]),
        norm_epsilon=raw.get("rms_norm_eps", 1e-6),
        tied_embeddings=raw.get("tie_word_embeddings", False),
    )
