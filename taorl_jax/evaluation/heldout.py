"""Held-out evaluation through the training loop's own engine, tools and judge."""

import dataclasses
from collections.abc import Callable

import numpy as np
from ml_collections import ConfigDict

from taorl_jax.data.pipeline import Prompt
from taorl_jax.data.problem import Problem
from taorl_jax.evaluation.statistics import avg_at_k, pass_at_k
from taorl_jax.rewards.math import MathJudge
from taorl_jax.rollout.scheduler import EVALUATION, Draw, Scheduler
from taorl_jax.rollout.trajectory import Trajectory
from taorl_jax.training.experience import judged_episodes, outcomes


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A fixed set of problems; those whose prompt is too long were never attempted and count as wrong."""

    prompts: list[Prompt]
    overlong: list[Problem]


def evaluate(
    scheduler: Scheduler,
    params,
    heldout: HeldOut,
    judge: MathJudge,
    config: ConfigDict,
    step: int,
    progress: Callable[[int, int], None],
) -> tuple[dict[str, float], list[Trajectory]]:
    """Samples `eval.samples` episodes of every problem.

    Returns:
      (metrics, trajectories). Unknown verdicts are left out of the shares and counted.
    """
    samples = config.eval.samples
    trajectories, stats = judged_episodes(
        scheduler, params, heldout.prompts, samples, Draw(config.seed, EVALUATION, step), judge,
        temperature=config.eval.temperature, progress=progress,
    )  # fmt: skip
    right_NxK, judged_NxK = outcomes(
        [trajectories[i : i + samples] for i in range(0, len(trajectories), samples)]
    )
    unattempted = np.zeros((len(heldout.overlong), samples), bool)
    right_NxK = np.concatenate([right_NxK, unattempted])
    judged_NxK = np.concatenate([judged_NxK, ~unattempted])
    average, passed = avg_at_k(right_NxK, judged_NxK), pass_at_k(right_NxK, judged_NxK, samples)
    metrics = {
        "eval/avg_at_k": average.value,
        "eval/avg_at_k_low": average.low,
        "eval/avg_at_k_high": average.high,
        "eval/pass_at_k": passed.value,
        "eval/k": samples,
        "eval/problems": len(right_NxK),
        "eval/not_attempted": len(heldout.overlong),
        "eval/unknown": average.unknown,
        "eval/episodes": len(trajectories),
        "eval/dropped_by_sandbox": stats.dropped,
        "eval/no_answer": float(np.mean([t.answer is None for t in trajectories])),
        "eval/response_tokens": float(np.mean([t.loss_mask.sum() for t in trajectories])),
        "timing/evaluate_seconds": stats.seconds,
    }
    return metrics, trajectories
