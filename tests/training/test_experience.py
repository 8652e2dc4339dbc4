"""Drawing, filtering and drawing again, with episodes made by hand in place of a rollout."""

import itertools

import numpy as np
import pytest
import worlds

from taorl_jax.data.pipeline import Prompt
from taorl_jax.data.problem import Problem
from taorl_jax.rewards.math import MathJudge
from taorl_jax.rewards.verdict import Outcome
from taorl_jax.rollout.scheduler import RolloutStats
from taorl_jax.rollout.trajectory import EndReason, ToolCall, Trajectory
from taorl_jax.tool_use.result import SandboxFailure, SandboxResult
from taorl_jax.training.experience import collect
from taorl_jax.training.loop import require_sandbox


def episode(draw, sample, kind):
    """`kind`: right, wrong, void, failed (wrong, after failed calls only) or lost (the sandbox's fault)."""
    t = Trajectory(draw, sample, [1])
    t.append_policy([2, 3], [-1.0, -1.0], [0.5, 0.5])
    t.turns, t.end, t.answer = 1, EndReason.ANSWERED, "1" if kind == "right" else "2"
    if kind == "void":
        t.void, t.end, t.answer = True, EndReason.VOID, None
    if kind == "failed":
        t.calls.append(ToolCall(0, "x", SandboxResult("exception", "", "", None, 1.0), False, "", (1, 3)))
    if kind == "lost":
        t.end = EndReason.SANDBOX_FAILURE
    return t


class FromScript:
    """Stands for the scheduler: the kinds of every group, in the order of their draws."""

    def __init__(self, groups):
        self.groups, self.asked = iter(groups), []

    def run(self, params, prompts, samples, draw, *, temperature, progress):
        self.asked.append(len(prompts))
        made = [
            episode(p.draw, sample, kind)
            for p in prompts
            for sample, kind in enumerate(next(self.groups).split())
        ]
        return made, RolloutStats(seconds=1.0, dropped=sum(t.end is EndReason.SANDBOX_FAILURE for t in made))


def run(groups, **overrides):
    config = worlds.make_config("nowhere", filter__min_group=2, **overrides)
    scheduler = FromScript(groups)
    stream = (Prompt(draw, Problem(str(draw), "q", "1", ""), [1]) for draw in itertools.count())
    with MathJudge() as judge:
        return collect(scheduler, None, stream, judge, config, 0, lambda done, total: None), scheduler


MIXED, RIGHT, WRONG = "right wrong right wrong", "right right right right", "wrong wrong wrong wrong"


def test_what_the_filters_drop_is_drawn_again_and_no_more():
    experience, scheduler = run([MIXED, RIGHT, MIXED, WRONG, MIXED, RIGHT])
    assert scheduler.asked == [4, 2], "two of four were kept; the refill asks for the two that are missing"
    assert [group.prompt.draw for group in experience.groups] == [0, 2, 4]
    assert experience.metrics["train/groups"] == 3
    assert experience.metrics["rollout/episodes"] == 24
    assert experience.metrics["filter/groups_all_right"] == pytest.approx(2 / 6)
    assert experience.metrics["filter/groups_all_wrong"] == pytest.approx(1 / 6)
    assert experience.metrics["train/reward_mean"] == pytest.approx((3 * 2 + 2 * 4) / 24)
    assert experience.metrics["rollout/discarded"] == pytest.approx(12 / 24)


def test_a_full_batch_needs_no_refill():
    _, scheduler = run([MIXED] * 4)
    assert scheduler.asked == [4]


def test_advantages_by_hand():
    """Kept: one right, two wrong. Mean 1/3, unbiased std sqrt(1/3): 2/3 and -1/3 over it."""
    experience, _ = run(["right wrong wrong void", *[MIXED] * 3])
    np.testing.assert_allclose(
        experience.groups[0].advantages, np.array([2, -1, -1, 0]) / 3 / (1 / 3) ** 0.5, rtol=1e-5
    )
    assert experience.groups[0].keep.tolist() == [True, True, True, False]


def test_episodes_whose_calls_all_failed_are_dropped_by_criterion_1_only():
    experience, _ = run(["right failed wrong wrong", *[MIXED] * 3])
    assert experience.groups[0].keep.tolist() == [True, False, True, True]
    experience, _ = run(["right failed wrong wrong", *[MIXED] * 3], filter__criterion1=False)
    assert experience.groups[0].keep.all()


def test_a_fault_of_the_sandbox_is_unknown_and_enters_nothing():
    experience, _ = run(["right lost wrong wrong", *[MIXED] * 3], advantage__baseline="all")
    group = experience.groups[0]
    assert group.trajectories[1].verdict.outcome is Outcome.UNKNOWN
    assert group.keep.tolist() == [True, False, True, True]
    np.testing.assert_allclose(group.advantages.sum(), 0, atol=1e-5)
    assert experience.metrics["rollout/dropped_by_sandbox"] == 1
    assert experience.metrics["train/reward_mean"] == pytest.approx(7 / 15)


def test_without_any_verdict_there_is_no_reward():
    experience, _ = run(["lost lost lost lost"] * 8)
    assert experience.metrics["train/reward_mean"] is None
    assert experience.groups == []


def test_naive_grpo_keeps_all_that_was_judged():
    switches = {
        f"filter__{name}": False for name in ("criterion1", "criterion2", "drop_void", "drop_overlong")
    }
    experience, scheduler = run([RIGHT, WRONG, "right void failed wrong", MIXED], **switches)
    assert scheduler.asked == [4]
    assert all(group.keep.all() for group in experience.groups)
    assert not experience.groups[0].advantages.any()


def test_more_lost_episodes_than_allowed_stop_the_run():
    """2 % by default: two of a hundred pass, three do not; in training as in evaluation."""
    config = worlds.make_config("nowhere")
    for prefix in ("rollout", "eval"):
        require_sandbox({f"{prefix}/dropped_by_sandbox": 2, f"{prefix}/episodes": 100}, prefix, config)
        with pytest.raises(SandboxFailure, match=r"3 of 100 episodes .* sandbox\.max_failed_share=0\.02"):
            require_sandbox({f"{prefix}/dropped_by_sandbox": 3, f"{prefix}/episodes": 100}, prefix, config)
