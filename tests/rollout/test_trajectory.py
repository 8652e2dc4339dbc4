"""The record: what its masks say for an episode of three turns."""

import numpy as np
import pytest

from taorl_jax.rollout.trajectory import EndReason, ToolCall, Trajectory
from taorl_jax.tool_use.result import SandboxResult


def call(turn, outcome):
    return ToolCall(turn, "1", SandboxResult(outcome, "", "", None, 1.0), outcome == "ok", "", (0, 1))


def three_turns(outcomes):
    """Prompt of 2; turns of 3, 2 and 1 policy tokens; observations of 2 and 1."""
    trajectory = Trajectory(prompt_id=7, sample=1, prompt_ids=[9, 9])
    for turn, (count, observation) in enumerate([(3, 2), (2, 1), (1, 0)]):
        trajectory.append_policy([turn] * count, [-0.5] * count, [0.25] * count)
        if observation:
            trajectory.append_observation([8] * observation)
            trajectory.calls.append(call(turn, outcomes[turn]))
        trajectory.turns += 1
    return trajectory


def test_columns_stay_aligned_and_unsampled_tokens_carry_no_numbers():
    t = three_turns(["ok", "exception"])
    columns = (t.tokens, t.authors, t.turn_of, t.logprobs, t.entropies)
    assert [len(column) for column in columns] == [11] * 5
    assert t.tokens.tolist() == [9, 9, 0, 0, 0, 8, 8, 1, 1, 8, 2]
    assert t.loss_mask.astype(int).tolist() == [0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 1]
    assert t.turn_of.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2]
    assert not t.logprobs[~t.loss_mask].any()
    assert not t.entropies[~t.loss_mask].any()


@pytest.mark.parametrize(
    ("outcomes", "post_tool", "all_failed"),
    [
        (["ok", "exception"], [7, 8], False),
        (["timeout", "ok"], [10], False),
        (["ok", "ok"], [7, 8, 10], False),
        (["exception", "timeout"], [], True),
    ],
)
def test_post_tool_tokens_are_those_of_the_turn_after_a_valid_call(outcomes, post_tool, all_failed):
    t = three_turns(outcomes)
    assert np.flatnonzero(t.post_tool_mask).tolist() == post_tool
    assert t.all_calls_failed is all_failed


def test_an_episode_without_calls_has_not_failed_them():
    t = Trajectory(0, 0, [1])
    t.append_policy([2], [-1.0], [0.5])
    t.end = EndReason.LENGTH
    assert not t.all_calls_failed
    assert t.overlong
    assert not t.post_tool_mask.any()


def test_ragged_policy_columns_are_refused():
    with pytest.raises(ValueError, match="2 tokens, 1 log-probs"):
        Trajectory(0, 0, [1]).append_policy([1, 2], [0.0], [0.0, 0.0])
