"""Randomly initialised models of transformers + torch, one of each family, saved as checkpoints."""

import jax
import torch
import transformers

from taorl_jax.models import checkpoint, transformer
from taorl_jax.models.model_config import read_model_config

VOCABULARY = 101
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.1,
}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 5000.0}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 32,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 3000.0, "factor": 2.5}

FAMILIES = {
    "qwen2": ("Qwen2", {"rope_parameters": PLAIN_ROPE, "tie_word_embeddings": True}),
    "qwen2-untied": ("Qwen2", {"rope_parameters": PLAIN_ROPE, "tie_word_embeddings": False}),
    "qwen3": ("Qwen3", {"rope_parameters": PLAIN_ROPE, "head_dim": 10, "tie_word_embeddings": True}),
    "qwen3-biased": (
        "Qwen3",
        {"rope_parameters": LINEAR_ROPE, "head_dim": 8, "attention_bias": True, "tie_word_embeddings": False},
    ),
    "llama": ("Llama", {"rope_parameters": PLAIN_ROPE, "tie_word_embeddings": True}),
    "llama3-biased": (
        "Llama",
        {
            "rope_parameters": LLAMA3_ROPE,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": False,
        },
    ),
}


def make_oracle(name: str, folder):
    """The torch model of a family with every weight, bias and norm random; saved to `folder`."""
    family, settings = FAMILIES[name]
    config = getattr(transformers, f"{family}Config")(**SIZES | settings)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            weight.copy_(torch.randn_like(weight) * 0.3 + (1.0 if "norm" in parameter else 0.0))
    model.save_pretrained(folder)
    return model


def load(folder):
    """(ModelConfig, parameters on the first device)."""
    config = read_model_config(folder)
    shapes, _ = transformer.abstract_params(config)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return config, checkpoint.load_params(folder, jax.tree.map(lambda _: device, shapes))
