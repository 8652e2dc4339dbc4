"""Trajectories as rows of an Arrow table, and back: exactly what they were, whatever a snippet printed."""

import dataclasses
import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from taorl_jax.rewards.verdict import Outcome, Verdict
from taorl_jax.rollout.trajectory import COLUMNS, EndReason, ToolCall, Trajectory
from taorl_jax.tool_use.result import SandboxResult

_ARROW_TYPES = {np.int8: pa.int8(), np.int32: pa.int32(), np.float32: pa.float32()}

# What holds text of the policy or of a tool is JSON: Arrow's strings cannot hold a lone surrogate.
SCHEMA = pa.schema(
    [
        pa.field("prompt_id", pa.int64(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
        pa.field("turns", pa.int32(), nullable=False),
        pa.field("void", pa.bool_(), nullable=False),
        pa.field("end", pa.string()),
        pa.field("outcome", pa.string()),
        pa.field("verdict_json", pa.string()),
        pa.field("answer_json", pa.string()),
        pa.field("calls_json", pa.string()),
        *(pa.field(name, pa.list_(_ARROW_TYPES[dtype]), nullable=False) for name, dtype in COLUMNS.items()),
    ]
)


def to_table(trajectories: Sequence[Trajectory]) -> pa.Table:
    """One row a trajectory, by SCHEMA. Per-token columns are lists of the dtypes that they have in memory."""
    return pa.Table.from_pylist([_row(trajectory) for trajectory in trajectories], schema=SCHEMA)


def from_table(table: pa.Table) -> list[Trajectory]:
    """The trajectories of a table that `to_table` made; it may have more columns."""
    rows = table.select([field.name for field in SCHEMA if field.name not in COLUMNS]).to_pylist()
    columns = {name: table.column(name) for name in COLUMNS}
    return [
        _trajectory(row, {name: column[i].values.to_numpy() for name, column in columns.items()})
        for i, row in enumerate(rows)
    ]


def _row(trajectory: Trajectory) -> dict:
    verdict = trajectory.verdict
    return {
        "prompt_id": trajectory.prompt_id,
        "sample": trajectory.sample,
        "turns": trajectory.turns,
        "void": trajectory.void,
        "end": trajectory.end and trajectory.end.value,
        "outcome": verdict and verdict.outcome.value,
        "verdict_json": verdict and json.dumps({"answer": verdict.answer, "reason": verdict.reason}),
        "answer_json": json.dumps(trajectory.answer),
        "calls_json": json.dumps([dataclasses.asdict(call) for call in trajectory.calls]),
        **{name: getattr(trajectory, name) for name in COLUMNS},
    }


def _trajectory(row: dict, columns: dict[str, np.ndarray]) -> Trajectory:
    trajectory = Trajectory.from_columns(row["prompt_id"], row["sample"], columns)
    trajectory.turns, trajectory.void = row["turns"], row["void"]
    trajectory.end = row["end"] and EndReason(row["end"])
    if row["outcome"]:
        trajectory.verdict = Verdict(Outcome(row["outcome"]), **json.loads(row["verdict_json"]))
    trajectory.answer = json.loads(row["answer_json"])
    trajectory.calls = [_call(fields) for fields in json.loads(row["calls_json"])]
    return trajectory


def _call(fields: dict) -> ToolCall:
    special = {"result": SandboxResult(**fields["result"]), "span": tuple(fields["span"])}
    return ToolCall(**(fields | special))
