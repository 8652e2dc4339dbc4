"""The experience of a step on the disk, from which its update can be made again without a sampler."""

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from taorl_jax.data.pipeline import Prompt
from taorl_jax.data.problem import CodeTest, Problem
from taorl_jax.errors import MissingFile, UserError
from taorl_jax.rollout.trajectory import Author, Trajectory
from taorl_jax.rollout.trajectory_table import from_table, to_table
from taorl_jax.training.durable_files import write_atomically
from taorl_jax.training.experience import Group


@dataclasses.dataclass(frozen=True)
class RecordedStep:
    """What a step learned from.

    Attributes:
      policy_step: finished updates of the policy that sampled it; the update must start from that policy.
      groups: as they entered the update.
    """

    policy_step: int
    groups: list[Group]


def write_step(path: pathlib.Path, recorded: RecordedStep) -> None:
    """Writes an Arrow file, one row an episode: the columns of a trajectory, and what is said below.

    `problem_json`: what the policy was asked; `keep`: whether it entered the loss; `advantage`: of its tokens
    before the entropy bonus. The trainer's log-probs are not in it: they follow from the policy, as in the
    step itself. Folders are made if need be.
    """
    members = [member for group in recorded.groups for member in _members(group)]
    table = to_table([trajectory for _, trajectory, _, _ in members])
    problems = [json.dumps(dataclasses.asdict(problem)) for problem, *_ in members]
    keep = [bool(keep) for _, _, keep, _ in members]
    advantages = [advantage for *_, advantage in members]
    table = (
        table.append_column("problem_json", pa.array(problems, pa.string()))
        .append_column("keep", pa.array(keep, pa.bool_()))
        .append_column("advantage", pa.array(advantages, pa.float32()))
        .replace_schema_metadata({"policy_step": str(recorded.policy_step)})
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, sink.getvalue())


def read_step(path: pathlib.Path) -> RecordedStep:
    """What `write_step` wrote: every array and text as it was.

    Raises:
      MissingFile: there is no such file.
      UserError: it is no recorded step.
    """
    if not path.is_file():
        raise MissingFile(f"{path}: no such file; `log.replay_every` says which steps a run records")
    try:
        with pa.ipc.open_file(path) as reader:
            table = reader.read_all()
        policy_step = int(table.schema.metadata[b"policy_step"])
        rows = list(
            zip(
                from_table(table),
                *(table.column(name).to_pylist() for name in ("problem_json", "keep", "advantage")),
                strict=True,
            )
        )
    except (pa.ArrowInvalid, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is no recorded step ({error}); record one with log.replay_every=1"
        ) from error
    by_prompt = itertools.groupby(rows, key=lambda row: row[0].prompt_id)
    return RecordedStep(policy_step, [_group(list(members)) for _, members in by_prompt])


def _members(group: Group) -> list[tuple[Problem, Trajectory, bool, float]]:
    columns = zip(group.trajectories, group.keep, group.advantages, strict=True)
    return [(group.prompt.problem, *column) for column in columns]


def _group(members: Sequence) -> Group:
    trajectories, problems, keep, advantages = zip(*members, strict=True)
    first = trajectories[0]
    ids = first.tokens[first.authors == Author.PROMPT].tolist()
    fields = json.loads(problems[0])
    tests = tuple(CodeTest(**test) for test in fields.pop("tests"))
    return Group(
        Prompt(first.prompt_id, Problem(**fields, tests=tests), ids),
        list(trajectories),
        np.array(keep, bool),
        np.array(advantages, np.float32),
    )
