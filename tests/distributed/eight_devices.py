"""Run by test_eight_devices.py in a process of its own: one step of the loop on a given mesh, as JSON.

Arguments: policy folder, data, fsdp, tensor.
"""

import hashlib
import json
import pathlib
import sys
import tempfile

import numpy as np
import worlds

from taorl_jax.models.checkpoint import save_params
from taorl_jax.rollout.engine import Stop
from taorl_jax.rollout.trajectory import Trajectory
from taorl_jax.training.learner import Learner
from taorl_jax.training.packing import lay_out, pack
from taorl_jax.training.setup import prepare


def sampled(engine, params, prompts):
    """Eight episodes of two segments with an observation between; returns trajectories."""
    trajectories = [Trajectory(i // 2, i % 2, prompts[i // 2]) for i in range(8)]
    pool = engine.prefill(params, prompts)
    engine.fork(pool, [(i, i // 2, prompts[i // 2], (0, 0, 0, i // 2, i % 2), 12) for i in range(8)])
    for segment in range(2):
        stopped = set()
        for _ in range(4):
            report = engine.fetch(engine.decode(params, 1.0))
            for i, t in enumerate(trajectories):
                n = report.counts_S[i]
                t.append_policy(
                    report.tokens_SxC[i, :n], report.logprobs_SxC[i, :n], report.entropies_SxC[i, :n]
                )
                if report.stops_S[i] == Stop.BUDGET:
                    stopped.add(i)
        if segment == 0:
            observation = list(range(40, 51))
            engine.extend(params, [(i, trajectories[i].tokens[-1], observation, 12) for i in sorted(stopped)])
            for i in stopped:
                trajectories[i].append_observation(observation)
    return trajectories


def main(policy, data, fsdp, tensor):
    config = worlds.make_config(
        policy, mesh__data=int(data), mesh__fsdp=int(fsdp), mesh__tensor=int(tensor), train__micro_rows=4
    )
    setup = prepare(config)
    learner = Learner(setup.model, setup.mesh, config)
    state = learner.load(policy)
    kernel = state.params["layers"]["mlp"]["up_kernel"]
    shard = kernel.addressable_shards[0].data.shape
    with tempfile.TemporaryDirectory() as again:
        save_params(state.params, setup.model, again, like=policy)
        saved = (pathlib.Path(again) / "model.safetensors").read_bytes()
    params = learner.rollout_params(state.params)
    trajectories = sampled(setup.engine, params, [p.ids for p in setup.heldout.prompts])
    layout = lay_out([len(t) for t in trajectories], 8, config.rollout.context_tokens, 4)
    packed = learner.place(pack(trajectories, layout))
    logprobs, entropies = learner.score(state.params, packed, layout.micro_batches)
    rng = np.random.default_rng(0)
    advantages = layout.spread([rng.normal(size=len(t)).astype(np.float32) for t in trajectories], np.float32)
    packed = learner.place(packed.replace(old_logprobs=logprobs, advantages=advantages))
    losses = []
    for _ in range(2):
        state, metrics = learner.update(state, packed, layout.micro_batches)
        losses.append({name: float(value) for name, value in metrics.items()})
    return {
        "tokens": [t.tokens.tolist() for t in trajectories],
        "logprobs": [t.logprobs.tolist() for t in trajectories],
        "entropy": float(np.asarray(entropies).sum()),
        "losses": losses,
        "shard": shard,
        "saved": hashlib.sha256(saved).hexdigest(),
        "devices": len(kernel.sharding.device_set),
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
