"""What is written of an episode can be read back bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taorl_jax.data.problem import Problem
from taorl_jax.rewards.verdict import Outcome, Verdict
from taorl_jax.rollout.trajectory import EndReason, ToolCall, Trajectory
from taorl_jax.tool_use.result import SandboxResult
from taorl_jax.training.trajectory_log import Episode, read_trajectories, write_trajectories

PROBLEM = Problem("tasks-7", "Café: 6 * 7?", "42", "easy")
FLOAT32 = st.floats(-1e4, 1e4, width=32)


def decode(ids):
    return " ".join(map(str, ids))


def make_trajectory(wall_ms=1.5):
    """Prompt [1, 2]; code [3, 4, 5] answered by [6, 7]; then the answer [8, 9]."""
    trajectory = Trajectory(prompt_id=7, sample=3, prompt_ids=[1, 2])
    trajectory.append_policy([3, 4], [-0.1, -0.2], [0.5, 0.6])
    trajectory.append_policy([5], [-0.3], [0.7])
    result = SandboxResult("ok", "42\n", "", None, wall_ms)
    trajectory.calls.append(ToolCall(0, "print(6 * 7)", result, True, "42", (2, 5)))
    trajectory.append_observation([6, 7])
    trajectory.turns = 1
    trajectory.append_policy([8, 9], [-0.4, -0.5], [0.8, 0.9])
    trajectory.turns = 2
    trajectory.end, trajectory.answer = EndReason.ANSWERED, "42"
    trajectory.verdict = Verdict(Outcome.RIGHT, "42", "equal")
    return trajectory


def make_episode(trajectory, advantage=0.75):
    advantages_T = advantage * trajectory.loss_mask.astype(np.float32)
    return Episode(PROBLEM, trajectory, advantages_T, advantages_T * np.float32(1.01))


def test_an_episode_is_written_with_everything_it_holds(tmp_path):
    trajectory = make_trajectory()
    path = write_trajectories(tmp_path / "trajectories", 12, [make_episode(trajectory)], decode)
    assert path == tmp_path / "trajectories" / "step_000012.jsonl"
    (record,) = read_trajectories(path)
    assert record["problem_id"] == "tasks-7"
    assert (record["problem"], record["gold"], record["sample"]) == ("Café: 6 * 7?", "42", 3)
    assert (record["end"], record["void"], record["answer"]) == ("answered", False, "42")
    assert record["verdict"] == {"outcome": "right", "reason": "equal"}
    assert record["calls"] == [
        {
            "turn": 0,
            "span": [2, 5],
            "code": "print(6 * 7)",
            "valid": True,
            "observation": "42",
            "outcome": "ok",
            "stdout": "42\n",
            "stderr": "",
            "final_answer": None,
            "wall_ms": 1.5,
        }
    ]
    assert record["segments"] == [
        {"author": "prompt", "turn": 0, "text": "1 2"},
        {"author": "policy", "turn": 0, "text": "3 4 5"},
        {"author": "tool", "turn": 0, "text": "6 7"},
        {"author": "policy", "turn": 1, "text": "8 9"},
    ]
    np.testing.assert_array_equal(record["loss_mask"], [0, 0, 1, 1, 1, 0, 0, 1, 1])
    np.testing.assert_array_equal(record["post_tool_mask"], [0, 0, 0, 0, 0, 0, 0, 1, 1])


@given(st.lists(st.tuples(st.integers(0, 151_935), FLOAT32, FLOAT32, FLOAT32), min_size=1, max_size=20))
def test_columns_come_back_bit_for_bit(tmp_path_factory, sampled):
    tokens, logprobs, entropies, advantages = map(list, zip(*sampled, strict=True))
    trajectory = Trajectory(0, 0, [5])
    trajectory.append_policy(tokens, logprobs, entropies)
    advantages_T = np.asarray([0, *advantages], np.float32)
    episode = Episode(PROBLEM, trajectory, advantages_T, advantages_T / 3)
    (record,) = read_trajectories(
        write_trajectories(tmp_path_factory.mktemp("log"), 1, [episode], decode),
    )
    for name in ("tokens", "authors", "turn_of", "logprobs", "entropies", "loss_mask", "post_tool_mask"):
        expected = getattr(trajectory, name)
        assert record[name].dtype == expected.dtype
        assert record[name].tobytes() == expected.tobytes()
    assert record["advantages"].tobytes() == advantages_T.tobytes()
    assert record["reshaped_advantages"].tobytes() == (advantages_T / 3).tobytes()


def test_only_wall_times_differ_between_runs(tmp_path):
    texts = []
    for wall_ms in (1.5, 9.25):
        path = write_trajectories(tmp_path, 1, [make_episode(make_trajectory(wall_ms))] * 2, decode)
        texts.append(path.read_text().replace(f'"wall_ms": {wall_ms}', ""))
    assert texts[0] == texts[1]
    assert len(texts[0].splitlines()) == 2


def test_an_episode_that_the_sandbox_failed_has_no_verdict(tmp_path):
    trajectory = Trajectory(0, 0, [1])
    trajectory.append_policy([2], [-0.1], [0.2])
    trajectory.end = EndReason.SANDBOX_FAILURE
    (record,) = read_trajectories(write_trajectories(tmp_path, 1, [make_episode(trajectory, 0.0)], decode))
    assert record["verdict"] is None
    assert record["end"] == "sandbox_failure"


@pytest.mark.parametrize("text", ["\ud800", "\u2028 \r\n \x00", "数"])
def test_any_output_of_a_snippet_survives(tmp_path, text):
    trajectory = make_trajectory()
    result = SandboxResult("ok", text, text, text, 1.0)
    trajectory.calls[0] = ToolCall(0, text, result, True, text, (2, 5))
    (record,) = read_trajectories(write_trajectories(tmp_path, 1, [make_episode(trajectory)], decode))
    assert all(record["calls"][0][name] == text for name in ("code", "stdout", "stderr", "observation"))


def test_refuses_advantages_of_another_length(tmp_path):
    trajectory = make_trajectory()
    episode = Episode(PROBLEM, trajectory, np.zeros(4, np.float32), np.zeros(len(trajectory), np.float32))
    with pytest.raises(ValueError, match=r"advantages has shape \(4,\) for an episode of 9 tokens"):
        write_trajectories(tmp_path, 1, [episode], decode)
