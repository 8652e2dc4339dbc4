"""Tool-aware trajectory filtering (TAO-RL, section IV-A), on the host.

Criterion 1 drops trajectories whose tool calls all failed; criterion 2 drops groups without a learning
signal, all right or all wrong. Void and overlong trajectories are dropped by switches of their own.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Selection:
    """What is left to train on.

    Attributes:
      keep_NxG: bool; the trajectories that enter the loss.
      group_kept_N: bool; the groups with at least one such trajectory.
      dropped: count by reason, of trajectories for `unknown`, `all_failed`, `void`, `overlong`, and of
        groups for `all_right`, `all_wrong`, `too_small`, `uniform_after_drops`.
    """

    keep_NxG: np.ndarray
    group_kept_N: np.ndarray
    dropped: dict[str, int]


def select(
    right_NxG,
    judged_NxG,
    all_failed_NxG,
    void_NxG,
    overlong_NxG,
    *,
    criterion1,
    criterion2,
    drop_void,
    drop_overlong,
    min_group,
) -> Selection:
    """Chooses the trajectories of N groups of G rollouts that enter the loss.

    A funnel; what falls out at one stage is not seen, and not counted, by the next:

    1. `unknown`: trajectories without a verdict, in every group.
    2. Groups, by all their judged rollouts: `all_right`, `all_wrong` (criterion 2), then `too_small`
       (fewer than `min_group` judged rollouts that are not overlong, or none judged at all).
    3. Trajectories of the groups that remain: `all_failed` (criterion 1), then `void`, then `overlong`.
    4. `uniform_after_drops`: groups with nothing left, or (criterion 2) with only one outcome left.

    With every switch off and `min_group` 0, everything that was judged is kept.

    Args:
      right_NxG: bool, the answer was right; not read where `judged_NxG` is False.
      judged_NxG: bool, the verdict is right or wrong, not unknown.
      all_failed_NxG: bool, the tool was called and no call was valid; False for a rollout without a call.
      void_NxG: bool, some turn had neither a complete code block nor an answer.
      overlong_NxG: bool, a token budget ran out.
      criterion1: drop `all_failed` trajectories.
      criterion2: demand both outcomes, among all judged rollouts and again among those left.
      drop_void: drop `void` trajectories.
      drop_overlong: drop `overlong` trajectories.
      min_group: smallest number of judged rollouts, not overlong, of a group that is worth a baseline.

    Raises:
      ValueError: the arrays are not all of one shape [N, G].
    """
    arrays = (right_NxG, judged_NxG, all_failed_NxG, void_NxG, overlong_NxG)
    right, judged, all_failed, void, overlong = (np.asarray(array, bool) for array in arrays)
    shapes = [array.shape for array in (right, judged, all_failed, void, overlong)]
    if len(set(shapes)) > 1 or right.ndim != 2:
        raise ValueError(f"filtering needs five arrays of one shape [groups, rollouts], not {shapes}")

    dropped = {"unknown": int((~judged).sum())}
    alive_N = np.ones(len(right), bool)
    some_judged = judged.any(1)
    all_right, all_wrong = some_judged & (right | ~judged).all(1), some_judged & ~(right & judged).any(1)
    too_small = ~some_judged | ((judged & ~overlong).sum(1) < min_group)
    for reason, hit in (
        ("all_right", criterion2 & all_right),
        ("all_wrong", criterion2 & all_wrong),
        ("too_small", too_small),
    ):
        dropped[reason] = int((hit & alive_N).sum())
        alive_N = alive_N & ~hit

    keep = judged & alive_N[:, None]
    for reason, hit in (
        ("all_failed", criterion1 & all_failed),
        ("void", drop_void & void),
        ("overlong", drop_overlong & overlong),
    ):
        dropped[reason] = int((hit & keep).sum())
        keep = keep & ~hit

    group_kept = keep.any(1)
    if criterion2:
        group_kept = (keep & right).any(1) & (keep & ~right).any(1)
    dropped["uniform_after_drops"] = int((alive_N & ~group_kept).sum())
    return Selection(keep & group_kept[:, None], group_kept, dropped)
