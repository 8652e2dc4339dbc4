"""The paper's policies by their published sizes: shapes and programs can be made without any weights."""

from taorl_jax.models.model_config import ModelConfig

PRESETS = {
    "qwen2.5-1.5b": ModelConfig(
        vocab_size=151_936,
        hidden=1536,
        mlp=8960,
        layers=28,
        heads=12,
        kv_heads=2,
        head_dim=128,
        max_positions=131_072,
        rope_theta=1e6,
    ),
    "qwen3-4b-base": ModelConfig(
        vocab_size=151_936,
        hidden=2560,
        mlp=9728,
        layers=36,
        heads=32,
        kv_heads=8,
        head_dim=128,
        max_positions=32_768,
        rope_theta=1e6,
        model_type="qwen3",
        qkv_bias=False,
        query_key_norm=True,
    ),
    "qwen2.5-7b": ModelConfig(
        vocab_size=152_064,
        hidden=3584,
        mlp=18_944,
        layers=28,
        heads=28,
        kv_heads=4,
        head_dim=128,
        max_positions=131_072,
        rope_theta=1e6,
        tied_embeddings=False,
    ),
}
