"""Measures the sampler: a whole call, prefill included, with log-probs and entropies of every token.

    python tools/benchmark_rollout.py --json            # `sample`, then `agentic` (benchmark_agentic.py)
    python tools/benchmark_rollout.py --what extend     # an observation's time against its history

One JSON object a line. Measured on one core, jax 0.10.2, tunix 0.1.7 in the same minutes:

| what | ours | tunix |
| --- | --- | --- |
| sample, tokens/s (32 rows, prompt 64, 128 generated) | 9,176 | 5,001 |

`extend` of 8 x 32 tokens took 12, 24, 55, 114 and 104 ms behind 128, 512, 1,024, 2,048 and 4,000 tokens: what
grows is attention over the history and the copy of the rows' cache, never a second run of the history.
"""

import argparse
import pathlib
import sys

import jax
import jax.numpy as jnp

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from taorl_jax.config import base_config
from taorl_jax.distributed.mesh import make_mesh
from taorl_jax.rollout.engine import Engine
from taorl_jax.rollout.policy_params import policy_params
from taorl_jax.rollout.stopping import build_stop_table
from taorl_jax.rollout.trajectory import Trajectory
from tools.benchmark_common import Workload, emit, gemm_limit, measure

HISTORIES = (128, 512, 1024, 2048, 4000)  # tokens in the cache before an observation


def make_engine(workload: Workload, **settings) -> Engine:
    """The sampler for a workload's lengths, float32; `settings` override the config's section `rollout`."""
    config = base_config()
    config.policy.compute_dtype = config.policy.cache_dtype = "float32"
    r = config.rollout
    r.slots, r.chunk, r.prefill_rows = workload.sequences, 32, workload.sequences // workload.group
    r.prompt_tokens = r.prefill_tokens = workload.prompt
    r.context_tokens, r.cache_bucket = workload.length, 64
    r.update(settings)
    table = build_stop_table([b"x"] * workload.model.vocab_size, workload.model.vocab_size)
    return Engine(workload.model, make_mesh(1, 1, 1), r, config.policy, table, stop_ids=())


def sample(engine: Engine, params, workload: Workload) -> list[Trajectory]:
    """One segment of every sequence, to its budget."""
    prompts = [row[: workload.prompt].tolist() for row in workload.tokens()[:: workload.group]]
    pool = engine.prefill(params, prompts)
    trajectories, starts = [], []
    for slot in range(workload.sequences):
        prompt, sample = divmod(slot, workload.group)
        trajectories.append(Trajectory(prompt, sample, prompts[prompt]))
        starts.append((slot, prompt, prompts[prompt], (0, 0, 0, prompt, sample), workload.generated))
    engine.fork(pool, starts)
    for _ in range(workload.generated // engine.sizes.chunk):
        report = engine.fetch(engine.decode(params, 1.0))
        for slot, trajectory in enumerate(trajectories):
            n = report.counts_S[slot]
            columns = (report.tokens_SxC, report.logprobs_SxC, report.entropies_SxC)
            trajectory.append_policy(*(column[slot, :n] for column in columns))
    engine.release()
    return trajectories


def run_sample(workload: Workload, options):
    """Every sequence from its prompt to its last token."""
    engine = make_engine(workload)
    params = policy_params(jnp.float32, workload.params())
    first, seconds = measure(lambda: sample(engine, params, workload), options.repeats)
    steps, rows = workload.generated, workload.sequences
    attended = sum(rows * (workload.prompt + i + 1) for i in range(steps))
    flops = workload.forward_flops(rows * steps, rows * steps, attended)
    limit = gemm_limit(rows)
    emit(
        "sample", first, seconds, rows * steps, logprobs=True, entropy=True, batch=rows,
        prompt=workload.prompt, generate=steps, ms_a_step=round(1e3 * seconds[len(seconds) // 2] / steps, 3),
        gemm_gflops=round(limit / 1e9, 1), gemm_share=round(flops / seconds[len(seconds) // 2] / limit, 3),
    )  # fmt: skip


def run_extend(workload: Workload, options):
    """One call that appends 32 tokens to 8 slots, against the tokens that they hold."""
    engine = make_engine(
        workload, context_tokens=4096, prompt_tokens=4064, prefill_tokens=256, cache_bucket=128,
        extend_rows=8, extend_tokens=32, slots=8, prefill_rows=8,
    )  # fmt: skip
    params = policy_params(jnp.float32, workload.params())
    for history in HISTORIES:
        seconds = sorted(_extend_seconds(engine, params, [5] * history) for _ in range(1 + options.repeats))
        emit("extend", seconds[-1], seconds[:-1], 8 * 32, history=history)


def _extend_seconds(engine: Engine, params, prompt: list[int]) -> float:
    """Of one `extend`, in slots that hold the prompt."""
    engine.release()
    pool = engine.prefill(params, [prompt])
    engine.fork(pool, [(slot, 0, prompt, (0, 0, 0, 0, slot), 8) for slot in range(8)])
    jax.block_until_ready(engine.state)

    def append():
        engine.extend(params, [(slot, 5, [7] * 32, 8) for slot in range(8)])
        jax.block_until_ready(engine.state)

    return measure(append, 0)[0]


def run_agentic(workload: Workload, options):
    """The tool loop, with the real sandbox."""
    from tools.benchmark_agentic import LATENCIES_MS, Sizes, agentic_rows, print_row

    for row in agentic_rows(Sizes(), LATENCIES_MS, options.repeats):
        print_row(row)


def main():
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="JSON lines (there is no other form)")
    runs = {"sample": run_sample, "extend": run_extend, "agentic": run_agentic}
    parser.add_argument("--what", nargs="+", choices=runs, default=["sample", "agentic"])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for what in options.what:
        runs[what](Workload(), options)


if __name__ == "__main__":
    main()
