"""The numbers of a step, by hand."""

import pytest

from taorl_jax.rewards.verdict import Outcome, Verdict
from taorl_jax.rollout.scheduler import RolloutStats
from taorl_jax.rollout.trajectory import EndReason, ToolCall, Trajectory
from taorl_jax.tool_use.result import SandboxResult
from taorl_jax.training.rollout_metrics import filter_metrics, rollout_metrics


def episode(outcomes, entropies, verdict):
    """A turn for each outcome and a last one without a call; every policy token of a turn has its entropy."""
    t = Trajectory(0, 0, [1, 1])
    for turn, outcome in enumerate([*outcomes, None]):
        t.append_policy([2, 2], [-1.0] * 2, [entropies[turn]] * 2)
        if outcome:
            result = SandboxResult(outcome, "", "", None, 1.0)
            t.calls.append(ToolCall(turn, "x", result, outcome == "ok", "", (2, 4)))
            t.append_observation([3])
        t.turns += 1
    t.end, t.answer, t.verdict = EndReason.ANSWERED, "1", Verdict(verdict, "1", "")
    return t


def test_means_over_episodes():
    episodes = [
        episode(["exception", "ok"], [0.3, 0.6, 0.9], Outcome.RIGHT),
        episode([], [0.2], Outcome.WRONG),
    ]
    stats = RolloutStats(rerolled=1, dropped=0, decode_slots=16, decode_tokens=8, seconds=2.0, waiting_s=0.5)
    metrics = rollout_metrics(episodes, [stats])
    expected = {
        "train/reward_mean": 0.5,
        "rollout/valid_code_ratio": (1 / 3 + 0) / 2,  # valid calls a turn
        "rollout/calls": 1.0,
        "rollout/failed_call_share": 0.5,
        "rollout/recovered_share": 0.5,
        "rollout/turns": 2.0,
        "rollout/response_tokens": 4.0,
        "rollout/observation_tokens": 1.0,
        "rollout/entropy": (0.3 + 0.6 + 0.9 + 0.2) / 4,
        "rollout/entropy_post_tool": 0.9,  # the turn after the one valid call
        "rollout/ended_answered": 1.0,
        "timing/tokens_per_second": 4.0,
        "timing/slot_occupancy": 0.5,
        "timing/waiting_share": 0.25,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_shares_dropped_over_two_waves():
    """8 episodes in groups of 2: 3 dropped for void turns, one group of four all right."""
    waves = [{"void": 1, "all_right": 1}, {"void": 2, "all_right": 0}]
    shares = filter_metrics(waves, episodes=8, samples=2)
    assert shares == {"filter/dropped_void": 3 / 8, "filter/groups_all_right": 1 / 4}


def test_unknown_verdicts_are_counted_by_reason():
    episodes = [episode([], [0.2], Outcome.WRONG) for _ in range(4)]
    reasons = ["the verifier ran for more than 5 s", "the gold answer cannot be read: \\frac"] * 2
    for unknown, reason in zip(episodes, reasons[:3], strict=False):
        unknown.verdict = Verdict(Outcome.UNKNOWN, "1", reason)
    metrics = rollout_metrics(episodes, [RolloutStats(seconds=2.0, slowest_s=0.5)])
    assert metrics["rollout/unknown"] == 0.75
    assert metrics["timing/slowest_share"] == 0.25
    assert {name: value for name, value in metrics.items() if name.startswith("unknown/")} == {
        "unknown/the_gold_answer_cannot_be_read": 1,
        "unknown/the_verifier_ran_for_more_than_5_s": 2,
    }
