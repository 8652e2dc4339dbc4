"""Hugging Face checkpoint folders: read straight into sharded arrays, and written back."""

from taorl_jax.models.checkpoint.load import load_params
from taorl_jax.models.checkpoint.save import save_params

__all__ = ["load_params", "save_params"]
