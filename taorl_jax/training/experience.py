"""One step's experience: draw prompts, roll out, judge, filter, refill, and weigh what is left."""

import dataclasses
from collections.abc import Callable

import numpy as np
from ml_collections import ConfigDict

from taorl_jax.algorithms.advantages import group_advantages
from taorl_jax.algorithms.filtering import select
from taorl_jax.data.pipeline import Prompt, PromptStream
from taorl_jax.distributed import hosts
from taorl_jax.rewards.math import MathJudge
from taorl_jax.rewards.verdict import Outcome, Verdict
from taorl_jax.rollout.scheduler import TRAINING, Draw, RolloutStats, Scheduler, over_hosts
from taorl_jax.rollout.trajectory import EndReason, Trajectory
from taorl_jax.training.rollout_metrics import filter_metrics, rollout_metrics


@dataclasses.dataclass(frozen=True)
class Group:
    """The episodes of one prompt. Arrays are [G]."""

    prompt: Prompt
    trajectories: list[Trajectory]
    keep: np.ndarray  # bool: enters the loss
    advantages: np.ndarray  # float32, 0 where not kept

    def kept(self) -> list[tuple[Trajectory, float]]:
        """The episodes that enter the loss, with their advantages."""
        columns = zip(self.trajectories, self.advantages, self.keep, strict=True)
        return [(trajectory, advantage) for trajectory, advantage, keep in columns if keep]


@dataclasses.dataclass(frozen=True)
class Experience:
    """What one step learns from.

    Attributes:
      groups: those with something kept, at most `rollout.prompts`, in the order of their draws.
      metrics: of everything that was rolled out, dropped groups included.
    """

    groups: list[Group]
    metrics: dict[str, float]


def collect(
    scheduler: Scheduler,
    params,
    stream: PromptStream,
    judge: MathJudge,
    config: ConfigDict,
    step: int,
    progress: Callable[[int, int], None],
) -> Experience:
    """Rolls out `rollout.prompts` groups; what the filters drop is drawn again, `rollout.refills` times."""
    wanted, samples = config.rollout.prompts, config.rollout.samples
    groups, everything, stats, dropped = [], [], [], []
    for _ in range(1 + config.rollout.refills):
        prompts = [next(stream) for _ in range(wanted - len(groups))]
        trajectories, wave_stats = judged_episodes(
            scheduler, params, prompts, samples, Draw(config.seed, TRAINING, step), judge,
            temperature=config.rollout.temperature, progress=progress,
        )  # fmt: skip
        by_group = [trajectories[i : i + samples] for i in range(0, len(trajectories), samples)]
        selection = _select(by_group, config.filter)
        groups += [
            (prompt, group, keep_G)
            for prompt, group, keep_G in zip(prompts, by_group, selection.keep_NxG, strict=True)
            if keep_G.any()
        ]
        everything += trajectories
        stats.append(wave_stats)
        dropped.append(selection.dropped)
        if len(groups) == wanted:
            break
    metrics = rollout_metrics(everything, stats) | filter_metrics(dropped, len(everything), samples)
    kept = sum(int(keep_G.sum()) for _, _, keep_G in groups)
    metrics |= {"train/groups": len(groups), "rollout/discarded": 1 - kept / len(everything)}
    return Experience(_weigh(groups, config), metrics)


def judged_episodes(
    scheduler: Scheduler,
    params,
    prompts: list[Prompt],
    samples: int,
    draw: Draw,
    judge: MathJudge,
    *,
    temperature: float,
    progress: Callable[[int, int], None],
) -> tuple[list[Trajectory], RolloutStats]:
    """Samples and judges `samples` episodes of every prompt; arguments as of `Scheduler.run`.

    Each host does those of its own prompts; then every host has all of them, so that whatever is decided
    from them is decided alike.

    Returns:
      (trajectories, stats): in the order of the prompts, samples of one side by side; stats of all hosts.
    """
    own = hosts.share(prompts, lambda prompt: prompt.draw)

    def sample():
        trajectories, stats = scheduler.run(
            params, own, samples, draw, temperature=temperature, progress=progress
        )
        judge_all(judge, trajectories, [p.problem.answer for p in own for _ in range(samples)], progress)
        return trajectories, stats

    by_host, stats = zip(*hosts.all_gather(hosts.on_all(sample)), strict=True)
    place = {prompt.draw: i for i, prompt in enumerate(prompts)}
    everything = sorted((t for part in by_host for t in part), key=lambda t: (place[t.prompt_id], t.sample))
    return everything, over_hosts(stats)


def judge_all(
    judge: MathJudge,
    trajectories: list[Trajectory],
    golds: list[str],
    progress: Callable[[int, int], None],
):
    """Sets every trajectory's verdict; what a fault of the sandbox ended is unknown."""
    scored = [t.end is not EndReason.SANDBOX_FAILURE for t in trajectories]
    pairs = [(gold, t.answer) for t, gold, ok in zip(trajectories, golds, scored, strict=True) if ok]
    verdicts = iter(judge.judge_many(pairs, progress))
    for trajectory, ok in zip(trajectories, scored, strict=True):
        unknown = Verdict(Outcome.UNKNOWN, trajectory.answer, "the sandbox failed")
        trajectory.verdict = next(verdicts) if ok else unknown


def outcomes(by_group: list[list[Trajectory]]) -> tuple[np.ndarray, np.ndarray]:
    """(right_NxG, judged_NxG), bool."""
    verdicts = [[t.verdict.outcome for t in group] for group in by_group]
    right = [[outcome is Outcome.RIGHT for outcome in group] for group in verdicts]
    judged = [[outcome is not Outcome.UNKNOWN for outcome in group] for group in verdicts]
    return np.array(right), np.array(judged)


def _select(by_group, switches):
    right_NxG, judged_NxG = outcomes(by_group)
    flags = [
        np.array([[getattr(t, name) for t in group] for group in by_group])
        for name in ("all_calls_failed", "void", "overlong")
    ]
    return select(
        right_NxG,
        judged_NxG,
        *flags,
        criterion1=switches.criterion1,
        criterion2=switches.criterion2,
        drop_void=switches.drop_void,
        drop_overlong=switches.drop_overlong,
        min_group=switches.min_group,
    )


def _weigh(groups, config) -> list[Group]:
    """Advantages of the kept episodes; the arrays have one shape, however many groups there are."""
    shape = (config.rollout.prompts, config.rollout.samples)
    right, judged, keep = (np.zeros(shape, bool) for _ in range(3))
    if groups:
        count = len(groups)
        right[:count], judged[:count] = outcomes([group for _, group, _ in groups])
        keep[:count] = [keep_G for _, _, keep_G in groups]
    baseline = keep if config.advantage.baseline == "kept" else judged
    advantages_NxG = np.asarray(group_advantages(right.astype(np.float32), keep, baseline))
    return [
        Group(prompt, group, keep_G, advantages_NxG[i]) for i, (prompt, group, keep_G) in enumerate(groups)
    ]
