"""Measures the update step: forward, backward and AdamW of the GRPO loss, entropy included.

    python tools/benchmark_update.py --json          # one JSON object a line
    python tools/benchmark_update.py --what ragged   # only one of grpo_step, grpo_iteration, ragged

Measured on one core, jax 0.10.2; tunix 0.1.7 and plain torch 2.13 likewise in the same minutes:

| seconds (median of 3) | ours | tunix | torch |
| --- | --- | --- | --- |
| grpo_step, 32 x 192 tokens | 1.072 | 1.996 | 2.084 |
| grpo_iteration, rollout and update | 1.679 | 2.896 | |
| grpo_step_ragged, packed (padding 25 %) | 0.698 | | |
| grpo_step_ragged, a trajectory a row (53 %) | 1.069 | | |

What each step bought in grpo_step (the same core, other minutes; tunix then 2.04 s):

| | seconds |
| --- | --- |
| scanned layers, micro-batches of 4 | 1.488 |
| micro-batches of 8, layers unrolled | 1.552 |
| micro-batches of 4, layers unrolled | 1.413 |
| + weight gradients as products with a transposed copy (`linear.transposed_product`) | 1.144 |
| + the same for the head's table, rotary embedding without concatenation | 1.059 |
| + attention's backward pass written out: no change in time, less memory | 1.07 |

That is 61 to 63 % of the products' own limit (`gemm_share`, 255 to 267 GFLOP/s). By the profile products take
0.79 s, of which attention's small ones 0.21 s; elementwise work and copies take 0.28 s: 0.14 s in attention
(rotary embedding, masks, transpositions) and 0.09 s in the gated MLP.
"""

import argparse
import dataclasses
import functools
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from taorl_jax.config import base_config
from taorl_jax.rollout.policy_params import policy_params
from taorl_jax.rollout.trajectory import Trajectory
from taorl_jax.training.optimiser import make_optimiser
from taorl_jax.training.packing import Layout, batch_shape, lay_out, pack
from taorl_jax.training.update import ForwardSettings, TrainState, update
from tools.benchmark_common import Workload, emit, gemm_limit, measure
from tools.benchmark_rollout import make_engine, sample

LOSS = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}


def make_trajectories(workload: Workload, generated: list[int]) -> list[Trajectory]:
    """Random episodes with so many generated tokens each."""
    made = []
    for i, (tokens, count) in enumerate(zip(workload.tokens(), generated, strict=True)):
        trajectory = Trajectory(i // workload.group, i % workload.group, tokens[: workload.prompt])
        zeros = np.zeros(count, np.float32)
        trajectory.append_policy(tokens[workload.prompt :][:count], zeros, zeros)
        made.append(trajectory)
    return made


def lay_out_rows(workload: Workload, trajectories, micro_rows: int, packed: bool) -> Layout:
    """Several trajectories to a row of the workload's length, or one."""
    lengths = [len(t) for t in trajectories]
    rows = len(lengths)
    if packed:
        return lay_out(lengths, rows, workload.length, micro_rows)
    shape = batch_shape(rows, workload.length, micro_rows)
    return Layout(list(range(rows)), [0] * rows, lengths, shape, shape[0])


class Step:
    """One jitted update over trajectories, its state donated from call to call."""

    def __init__(self, workload: Workload, settings: ForwardSettings, trajectories, layout: Layout):
        optimiser = make_optimiser(base_config().train)
        self.use(trajectories, layout)
        params = workload.params()
        self._state = TrainState(params, optimiser.init(params))
        run = functools.partial(update, workload.model, settings, optimiser, LOSS)
        self._run = jax.jit(run, donate_argnums=0)

    @property
    def params(self):
        """The policy as it is now."""
        return self._state.params

    def use(self, trajectories, layout: Layout):
        """Takes these trajectories from now on, with advantages of 1 and -1 and the sampler's log-probs."""
        advantages = [np.full(len(t), 1.0 - 2.0 * (i % 2), np.float32) for i, t in enumerate(trajectories)]
        self._layout = layout
        self._batch = pack(trajectories, layout).replace(
            advantages=layout.spread(advantages, np.float32),
            old_logprobs=layout.spread([t.logprobs for t in trajectories], np.float32),
        )

    def __call__(self):
        """Runs the update and waits for it."""
        self._state, metrics = self._run(self._state, self._batch, self._layout.micro_batches)
        jax.block_until_ready((self._state, metrics))


def settings_of(options) -> ForwardSettings:
    """How the policy is run, by the command line."""
    return ForwardSettings(remat=options.remat, unroll=not options.scan, head_chunk=options.head_chunk)


def grpo_step(workload: Workload, options):
    """The peers' workload: all sequences of one length."""
    rows, length = workload.sequences, workload.length
    trajectories = make_trajectories(workload, [workload.generated] * rows)
    layout = lay_out_rows(workload, trajectories, options.micro_rows, packed=True)
    step = Step(workload, settings_of(options), trajectories, layout)
    first, seconds = measure(step, options.repeats)
    limit = gemm_limit(options.micro_rows * length)
    flops = 3 * workload.forward_flops(rows * length, rows * workload.generated, rows * length * length)
    emit(
        "grpo_step", first, seconds, rows * length,
        gemm_gflops=round(limit / 1e9, 1), gemm_share=round(flops / seconds[len(seconds) // 2] / limit, 3),
        gflop=round(flops / 1e9, 1), sequences=rows, length=length, entropy=True,
        **dataclasses.asdict(settings_of(options)) | {"dtype": "float32", "micro_rows": options.micro_rows},
    )  # fmt: skip


def ragged(workload: Workload, options):
    """Heavy-tailed lengths: packed into rows, and one to a row."""
    rng = np.random.default_rng(0)
    drawn = np.clip(rng.lognormal(np.log(24), 0.9, workload.sequences), 2, workload.generated)
    trajectories = make_trajectories(workload, drawn.astype(int).tolist())
    tokens = sum(len(t) for t in trajectories)
    for packed in (True, False):
        layout = lay_out_rows(workload, trajectories, options.micro_rows, packed)
        step = Step(workload, settings_of(options), trajectories, layout)
        first, seconds = measure(step, options.repeats)
        emit(
            "grpo_step_ragged", first, seconds, tokens, packed=packed,
            padding_share=round(layout.padding_share, 3), micro_batches=layout.micro_batches,
        )  # fmt: skip


def grpo_iteration(workload: Workload, options):
    """Rollout, log-probs and entropies included, then one update on the sampler's own log-probs."""
    engine = make_engine(workload)
    step = None
    cast = jax.jit(functools.partial(policy_params, jnp.float32))

    def iteration():
        nonlocal step
        params = cast(step.params if step else workload.params())
        trajectories = sample(engine, params, workload)
        layout = lay_out_rows(workload, trajectories, options.micro_rows, packed=True)
        if step is None:
            step = Step(workload, settings_of(options), trajectories, layout)
        else:
            step.use(trajectories, layout)
        step()

    first, seconds = measure(iteration, options.repeats)
    tokens = workload.sequences * workload.generated
    emit("grpo_iteration", first, seconds, tokens, sequences=workload.sequences, length=workload.length)


def main():
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="the only form there is; for symmetry")
    parser.add_argument("--what", nargs="+", default=["grpo_step", "grpo_iteration", "ragged"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--micro-rows", type=int, default=4)
    parser.add_argument("--head-chunk", type=int, default=512)
    parser.add_argument("--remat", default="none", choices=("none", "dots", "full"))
    parser.add_argument("--scan", action="store_true", help="scan the layers instead of unrolling them")
    options = parser.parse_args()
    workloads = {"grpo_step": grpo_step, "grpo_iteration": grpo_iteration, "ragged": ragged}
    for what in options.what:
        workloads[what](Workload(), options)


if __name__ == "__main__":
    main()
