"""The model card of the quickstart policy, with what the real rollout measures on it."""

import contextlib
import pathlib
import tempfile

import numpy as np

from experiments.quickstart import get_config
from taorl_jax.data.pipeline import prompt_stream
from taorl_jax.evaluation.heldout import evaluate
from taorl_jax.rewards.math import MathJudge
from taorl_jax.rollout.scheduler import TRAINING, Draw, Scheduler
from taorl_jax.tool_use.sandbox import open_sandbox
from taorl_jax.training.experience import judge_all, outcomes
from taorl_jax.training.learner import Learner
from taorl_jax.training.setup import prepare

GROUPS = 64  # of training prompts
HELDOUT = 128  # problems

CARD = """# Quickstart policy

A Qwen2-style decoder of {parameters:,} float32 parameters with a byte-level BPE tokenizer of {vocabulary}
tokens and a ChatML template. It was trained from scratch, in {steps} steps, on synthetic tool-use traces of
which many are wrong on purpose, for one end: to be the starting point of `experiments/quickstart.py`, so that
there is something for reinforcement learning to find. It knows nothing but these few kinds of problems.

Built by `python -m tools.build_quickstart_policy` (seeds fixed, no data from outside). Licence: Apache-2.0,
like the rest of the repository.

Measured when it was built, with the real rollout and sandbox:

| quantity | value |
| --- | --- |
{rows}
"""


def measure(folder: pathlib.Path, heldout: int = HELDOUT) -> dict[str, float]:
    """Shares (0 to 1) over held-out problems and over training groups, sampled at T = 1 if not said."""
    config = get_config()
    with config.unlocked():
        config.policy.checkpoint = str(folder)
        config.eval.problems = heldout
    setup = prepare(config)
    learner = Learner(setup.model, setup.mesh, config)
    params = learner.rollout_params(learner.load(folder).params)
    stream = prompt_stream(
        setup.train_problems,
        setup.prompt_format,
        seed=config.seed,
        max_prompt_tokens=config.rollout.prompt_tokens,
    )
    prompts = [next(stream) for _ in range(GROUPS)]
    silent = lambda done, total: None
    with contextlib.ExitStack() as stack:
        log = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "sandbox.log"
        sandbox = stack.enter_context(open_sandbox(config.sandbox, log))
        judge = stack.enter_context(MathJudge.from_config(config.reward))
        scheduler = Scheduler(setup.engine, setup.tokenizer, sandbox.client, config)
        sampled, _ = evaluate(scheduler, params, setup.heldout, judge, config, 0, silent)
        config.eval.temperature, config.eval.samples = 0.0, 1
        greedy, _ = evaluate(scheduler, params, setup.heldout, judge, config, 0, silent)
        samples = config.rollout.samples
        draw = Draw(config.seed, TRAINING, 0)
        trajectories, _ = scheduler.run(params, prompts, samples, draw, temperature=1.0)
        golds = [p.problem.answer for p in prompts for _ in range(samples)]
        judge_all(judge, trajectories, golds, silent)
    return {
        "held-out success, sampled": sampled["eval/avg_at_k"],
        "held-out success, greedy": greedy["eval/avg_at_k"],
        **training_shares([trajectories[i : i + samples] for i in range(0, len(trajectories), samples)]),
    }


def training_shares(groups) -> dict[str, float]:
    """What is found among groups of training trajectories."""
    rate_N = outcomes(groups)[0].mean(axis=1)
    calls = [[call.valid for call in t.calls] for group in groups for t in group]
    return {
        "training groups all right": np.mean(rate_N == 1),
        "training groups all wrong": np.mean(rate_N == 0),
        "training groups mixed": np.mean((rate_N > 0) & (rate_N < 1)),
        "training trajectories with a failed call": np.mean([not all(valid) for valid in calls]),
        "with a valid call after a failed one": np.mean([_recovers(valid) for valid in calls]),
        "with failed calls only": np.mean([bool(valid) and not any(valid) for valid in calls]),
        "with a void turn": np.mean([t.void for group in groups for t in group]),
        "without any call": np.mean([not valid for valid in calls]),
    }


def _recovers(valid: list[bool]) -> bool:
    return False in valid and any(valid[valid.index(False) :])


def write_card(folder: pathlib.Path, *, parameters: int, vocabulary: int, steps: int):
    """Measures the policy in `folder` and writes its README.md."""
    rows = "\n".join(f"| {name} | {100 * share:.1f} % |" for name, share in measure(folder).items())
    card = CARD.format(parameters=parameters, vocabulary=vocabulary, steps=steps, rows=rows)
    (folder / "README.md").write_text(card)
