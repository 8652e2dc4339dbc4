"""Sampled episodes of a step as JSON lines, for people: what was written, and what each token weighed.

`recorded_step` holds whole steps, from which the update can be made again.
"""

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from taorl_jax.data.problem import Problem
from taorl_jax.rollout.trajectory import Author, ToolCall, Trajectory
from taorl_jax.training.durable_files import write_atomically

_DTYPES = {
    "tokens": np.int32,
    "authors": np.int8,
    "turn_of": np.int32,
    "loss_mask": bool,
    "post_tool_mask": bool,
    "logprobs": np.float32,
    "entropies": np.float32,
    "advantages": np.float32,
    "reshaped_advantages": np.float32,
}


@dataclasses.dataclass(frozen=True)
class Episode:
    """An episode and what the algorithm made of it.

    Attributes:
      problem: what the policy was asked.
      trajectory: what it did.
      advantages_T: [T] float32, before the entropy bonus; 0 where nothing is trained.
      reshaped_advantages_T: [T] float32, after the bonus.
    """

    problem: Problem
    trajectory: Trajectory
    advantages_T: np.ndarray
    reshaped_advantages_T: np.ndarray


def write_trajectories(
    directory: pathlib.Path, step: int, episodes: Iterable[Episode], decode: Callable[[Sequence[int]], str]
) -> pathlib.Path:
    """Writes `<directory>/step_<step>.jsonl`, one episode a line, and returns its path.

    The file depends on nothing but the episodes: only the wall times of tool calls differ from run to run.

    Args:
      directory: made if need be.
      step: the training step, from 1, that sampled them.
      episodes: in the order in which they are written.
      decode: token ids -> text, for people; nothing reads that text back.

    Raises:
      ValueError: advantages do not have one value a token.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"step_{step:06d}.jsonl"
    # Escaped to ASCII: what a snippet printed may hold code points that UTF-8 cannot.
    lines = [json.dumps(_record(episode, decode)) + "\n" for episode in episodes]
    write_atomically(path, "".join(lines).encode())
    return path


def read_trajectories(path: pathlib.Path) -> list[dict]:
    """The episodes of a file, their per-token columns as [T] arrays of the dtypes they had."""
    with open(path, encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return [
        record | {name: np.asarray(record[name], dtype) for name, dtype in _DTYPES.items()}
        for record in records
    ]


def _record(episode, decode):
    problem, trajectory = episode.problem, episode.trajectory
    columns = _columns(episode)
    verdict = trajectory.verdict
    return {
        "problem_id": problem.id,
        "sample": trajectory.sample,
        "problem": problem.text,
        "gold": problem.answer,
        "end": trajectory.end and trajectory.end.value,
        "void": trajectory.void,
        "answer": trajectory.answer,
        "verdict": verdict and {"outcome": verdict.outcome.value, "reason": verdict.reason},
        "segments": list(_segments(trajectory, decode)),
        "calls": [_call(call) for call in trajectory.calls],
        **{name: column.tolist() for name, column in columns.items()},
    }


def _columns(episode):
    trajectory = episode.trajectory
    columns = {name: getattr(trajectory, name) for name in _DTYPES if "advantages" not in name}
    columns["advantages"] = episode.advantages_T
    columns["reshaped_advantages"] = episode.reshaped_advantages_T
    for name, column in columns.items():
        if column.shape != (len(trajectory),):
            raise ValueError(f"{name} has shape {column.shape} for an episode of {len(trajectory)} tokens")
    return {name: np.asarray(column, _DTYPES[name]) for name, column in columns.items()}


def _segments(trajectory, decode):
    """Runs of tokens by one author in one turn, as text for people."""
    keys = zip(trajectory.authors.tolist(), trajectory.turn_of.tolist(), strict=True)
    start = 0
    for (author, turn), run in itertools.groupby(keys):
        stop = start + sum(1 for _ in run)
        text = decode(trajectory.tokens[start:stop].tolist())
        yield {"author": Author(author).name.lower(), "turn": turn, "text": text}
        start = stop


def _call(call: ToolCall):
    return {
        "turn": call.turn,
        "span": list(call.span),
        "code": call.code,
        "valid": call.valid,
        "observation": call.observation,
        **dataclasses.asdict(call.result),
    }
