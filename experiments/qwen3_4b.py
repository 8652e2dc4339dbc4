"""Qwen3-4B-Base with the hyper-parameters of the paper, on TPU pods.

The weights: `hf download Qwen/Qwen3-4B-Base --local-dir checkpoints/Qwen3-4B-Base`.
The data: `data/train.jsonl` and `data/heldout.jsonl`, rows with problem and answer
(tools/prepare_data.py converts and checks).
`--config experiments/qwen3_4b.py:pod=v5e-32` names the machine, `...,arm=tir` an arm.
"""

from taorl_jax.config import apply_argument, base_config

PODS = {
    "v5e-32": {"mesh.fsdp": 32, "mesh.rollout_tensor": 4, "rollout.slots": 16, "train.micro_rows": 32},
    "v6e-16": {"mesh.fsdp": 16, "mesh.rollout_tensor": 4, "rollout.slots": 40, "train.micro_rows": 16},
}


def get_config(argument=""):
    """The base config has the paper's values; `argument` is empty, or `pod=NAME`, `arm=NAME` or both."""
    c = base_config()
    c.name = "qwen3-4b-base"
    c.policy.checkpoint = "checkpoints/Qwen3-4B-Base"
    c.data.train = "data/train.jsonl"
    c.data.heldout = "data/heldout.jsonl"
    c.eval.problems = 50
    c.eval.samples = 16
    return apply_argument(c, argument, PODS)
