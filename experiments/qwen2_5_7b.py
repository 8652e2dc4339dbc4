"""Qwen2.5-7B with the hyper-parameters of the paper, on TPU pods.

The weights: `hf download Qwen/Qwen2.5-7B --local-dir checkpoints/Qwen2.5-7B`.
The data: `data/train.jsonl` and `data/heldout.jsonl`, rows with problem and answer
(tools/prepare_data.py converts and checks).
`--config experiments/qwen2_5_7b.py:pod=v5e-64` names the machine, `...,arm=tir` an arm.
"""

from taorl_jax.config import apply_argument, base_config

PODS = {
    "v5e-64": {"mesh.fsdp": 16, "mesh.tensor": 4, "rollout.slots": 48, "train.micro_rows": 16},
    "v6e-32": {"mesh.fsdp": 32, "mesh.rollout_tensor": 4, "rollout.slots": 128, "train.micro_rows": 32},
    "v5p-16": {"mesh.fsdp": 16, "mesh.rollout_tensor": 4, "rollout.slots": 256, "train.micro_rows": 16},
}


def get_config(argument=""):
    """The base config has the paper's values; `argument` is empty, or `pod=NAME`, `arm=NAME` or both."""
    c = base_config()
    c.name = "qwen2.5-7b"
    c.policy.checkpoint = "checkpoints/Qwen2.5-7B"
    c.data.train = "data/train.jsonl"
    c.data.heldout = "data/heldout.jsonl"
    c.eval.problems = 50
    c.eval.samples = 16
    return apply_argument(c, argument, PODS)
