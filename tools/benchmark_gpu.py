"""Sampler and update of a random policy in bfloat16 on one device, against what the device can do.

Run by tools/benchmark_gpu.sh. MFU counts the products of a forward, thrice in an update; the share of
bandwidth counts what decoding has to read: the weights, and the keys and values written so far.
"""

import argparse
import dataclasses
import pathlib
import sys

import jax
import jax.numpy as jnp

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from taorl_jax.config import base_config
from taorl_jax.distributed.mesh import make_mesh
from taorl_jax.models.attention import choose_backend
from taorl_jax.models.model_config import ModelConfig
from taorl_jax.models.presets import PRESETS
from taorl_jax.rollout.engine import Engine
from taorl_jax.rollout.policy_params import policy_params
from taorl_jax.rollout.stopping import build_stop_table
from taorl_jax.training.update import ForwardSettings
from tools.benchmark_common import Workload, emit, measure
from tools.benchmark_update import Step, lay_out_rows, make_trajectories, sample

HALF_B = ModelConfig(
    vocab_size=151_936, hidden=896, mlp=4864, layers=24, heads=14, kv_heads=2, head_dim=64,
    max_positions=32_768, rope_theta=1e6,
)  # fmt: skip
WORKLOADS = {
    "toy": Workload(sequences=8, group=4, prompt=16, generated=32),
    "0.5b": Workload(HALF_B, sequences=64, group=8, prompt=256, generated=768),
    "1.5b": Workload(PRESETS["qwen2.5-1.5b"], sequences=64, group=8, prompt=256, generated=768),
}
# Part of the device's name -> dense bfloat16 FLOP/s, bytes/s of memory; from NVIDIA's data sheets (SXM).
PEAKS = {
    "H200": (989e12, 4.8e12),
    "H100": (989e12, 3.35e12),
    "A100": (312e12, 2.0e12),
    "L40S": (362e12, 864e9),
    "L4": (121e12, 300e9),
}


def peaks() -> tuple[float, float] | None:
    """(FLOP/s, bytes/s) of the device; None if it is not in the table."""
    kind = jax.devices()[0].device_kind
    return next((peak for name, peak in PEAKS.items() if name in kind), None)


def share(amount: float, seconds: float, peak: float | None) -> float | None:
    """Of the peak; None where that is not known."""
    return None if peak is None else round(amount / seconds / peak, 4)


def sampler(workload: Workload, about: dict):
    """All sequences to their end, log-probs and entropies included."""
    m, rows, flops_peak, bytes_peak = workload.model, workload.sequences, *(peaks() or (None, None))
    config = base_config()
    r = config.rollout
    r.slots, r.chunk, r.prefill_rows = rows, min(32, workload.generated), rows // workload.group
    r.prompt_tokens = r.prefill_tokens = workload.prompt
    r.context_tokens, r.cache_bucket = workload.length, max(workload.length // 4, 16)
    table = build_stop_table([b"x"] * m.vocab_size, m.vocab_size)
    engine = Engine(m, make_mesh(1, 1, 1), r, config.policy, table, stop_ids=())
    params = jax.jit(lambda params: policy_params(jnp.bfloat16, params))(workload.params())
    first, seconds = measure(lambda: sample(engine, params, workload), 2)
    steps, tokens = workload.generated, rows * workload.generated
    held = workload.prompt + workload.generated / 2
    flops = workload.forward_flops(tokens, tokens, int(tokens * held))
    moved = steps * (2 * m.parameters + rows * held * 4 * m.layers * m.kv_heads * m.head_dim)
    emit(
        "gpu_sample", first, seconds, tokens, mfu=share(flops, seconds[0], flops_peak),
        bandwidth_share=share(moved, seconds[0], bytes_peak), **about,
    )  # fmt: skip


def updater(workload: Workload, about: dict):
    """Updates over packed rows of the workload's length."""
    rows, length, flops_peak, bytes_peak = workload.sequences, workload.length, *(peaks() or (None, None))
    attention = choose_backend("auto", jax.default_backend(), jnp.bfloat16)
    settings = ForwardSettings(dtype=jnp.bfloat16, attention=attention, remat="full")
    trajectories = make_trajectories(workload, [workload.generated] * rows)
    layout = lay_out_rows(workload, trajectories, min(8, rows), packed=True)
    step = Step(workload, settings, trajectories, layout)
    first, seconds = measure(step, 3)
    flops = 3 * workload.forward_flops(rows * length, rows * workload.generated, rows * length * length // 2)
    # Gradients are added, and the optimiser reads and writes float32 weights and two moments.
    moved = workload.model.parameters * (layout.micro_batches * (3 * 2 + 8) + 28)
    emit(
        "gpu_update", first, seconds, rows * length, mfu=share(flops, seconds[0], flops_peak),
        bandwidth_share=share(moved, seconds[0], bytes_peak), attention=attention, **about,
    )  # fmt: skip


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=WORKLOADS, required=True)
    workload = WORKLOADS[parser.parse_args().model]
    sizes = {name: value for name, value in dataclasses.asdict(workload).items() if name != "model"}
    about = {"parameters": workload.model.parameters, "device": jax.devices()[0].device_kind, **sizes}
    sampler(workload, about)
    updater(workload, about)


if __name__ == "__main__":
    main()
