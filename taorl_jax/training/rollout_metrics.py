"""What a step's rollouts say, as named numbers; shares are of episodes unless the name says groups."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from taorl_jax.rewards.verdict import Outcome
from taorl_jax.rollout.scheduler import RolloutStats
from taorl_jax.rollout.trajectory import Author, EndReason, Trajectory

EPISODE_REASONS = ("unknown", "all_failed", "void", "overlong")


def rollout_metrics(trajectories: Sequence[Trajectory], stats: Sequence[RolloutStats]) -> dict[str, float]:
    """Means over all episodes of a step, and the clock of its waves."""
    judged = [t for t in trajectories if t.verdict.outcome is not Outcome.UNKNOWN]
    policy = np.concatenate([t.entropies[t.loss_mask] for t in trajectories])
    post_tool = np.concatenate([t.entropies[t.post_tool_mask] for t in trajectories])
    ends = Counter(t.end for t in trajectories)
    calls = sum(len(t.calls) for t in trajectories)
    seconds = sum(s.seconds for s in stats)
    tokens, slots = sum(s.decode_tokens for s in stats), sum(s.decode_slots for s in stats)
    valid_per_turn = [sum(call.valid for call in t.calls) / t.turns for t in trajectories if t.turns]
    metrics = {
        "train/reward_mean": _mean([t.verdict.outcome is Outcome.RIGHT for t in judged]) if judged else None,
        "rollout/episodes": len(trajectories),
        "rollout/unknown": 1 - len(judged) / len(trajectories),
        "rollout/no_answer": _mean([t.answer is None for t in trajectories]),
        "rollout/valid_code_ratio": _mean(valid_per_turn),
        "rollout/calls": calls / len(trajectories),
        "rollout/failed_call_share": _mean([any(not c.valid for c in t.calls) for t in trajectories]),
        "rollout/void_share": _mean([t.void for t in trajectories]),
        "rollout/recovered_share": _mean([_recovered(t) for t in trajectories]),
        "rollout/turns": _mean([t.turns for t in trajectories]),
        "rollout/response_tokens": _mean([t.loss_mask.sum() for t in trajectories]),
        "rollout/observation_tokens": _mean([(t.authors == Author.TOOL).sum() for t in trajectories]),
        "rollout/entropy": _mean(policy),
        "rollout/entropy_post_tool": _mean(post_tool),
        "rollout/dropped_by_sandbox": sum(s.dropped for s in stats),
        "timing/rerolled": sum(s.rerolled for s in stats),
        "timing/lost_calls": sum(s.lost_calls for s in stats),
        "timing/late_answers": sum(s.late_answers for s in stats),
        "timing/rollout_seconds": seconds,
        "timing/tokens_per_second": tokens / seconds,
        "timing/slot_occupancy": tokens / max(slots, 1),
        "timing/waiting_share": sum(s.waiting_s for s in stats) / seconds,
        "timing/slowest_share": sum(s.slowest_s for s in stats) / seconds,
    }
    metrics |= {f"rollout/ended_{reason.value}": ends[reason] / len(trajectories) for reason in EndReason}
    return metrics | _unknown_by_reason(trajectories)


def filter_metrics(dropped: Sequence[dict[str, int]], episodes: int, samples: int) -> dict[str, float]:
    """Shares dropped, by reason, over the waves of a step."""
    total = sum((Counter(wave) for wave in dropped), Counter())
    reasons = dropped[0]
    return {
        f"filter/dropped_{reason}" if reason in EPISODE_REASONS else f"filter/groups_{reason}": total[reason]
        / (episodes if reason in EPISODE_REASONS else episodes / samples)
        for reason in reasons
    }


def _unknown_by_reason(trajectories) -> dict[str, int]:
    """`unknown/<reason>` -> how many verdicts were unknown for it; reasons that did not occur are absent."""
    reasons = [t.verdict.reason for t in trajectories if t.verdict.outcome is Outcome.UNKNOWN]
    kinds = (re.sub("[^a-z0-9]+", "_", reason.partition(":")[0].lower()).strip("_") for reason in reasons)
    return {f"unknown/{kind}": count for kind, count in sorted(Counter(kinds).items())}


def _recovered(trajectory: Trajectory) -> bool:
    """A failed call was followed by a valid one."""
    valid = [call.valid for call in trajectory.calls]
    return False in valid and True in valid[valid.index(False) :]


def _mean(values) -> float:
    """The mean; 0 of nothing."""
    return float(np.mean(values)) if len(values) else 0.0
