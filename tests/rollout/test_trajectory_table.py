"""What goes through a table comes back as it was."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taorl_jax.rewards.verdict import Outcome, Verdict
from taorl_jax.rollout.trajectory import COLUMNS, Author, EndReason, ToolCall, Trajectory
from taorl_jax.rollout.trajectory_table import SCHEMA, from_table, to_table
from taorl_jax.tool_use.result import CODE_OUTCOMES, SandboxResult

FLOAT32 = st.floats(width=32, allow_nan=False)
TOKEN = st.integers(0, 2**31 - 1)
TEXT = st.text(st.characters(), max_size=20)  # lone surrogates and NUL included


@st.composite
def trajectories(draw):
    """An episode of any turns, calls and verdict."""
    t = Trajectory(draw(st.integers(0, 2**40)), draw(st.integers(0, 99)), draw(st.lists(TOKEN, min_size=1)))
    for _ in range(draw(st.integers(0, 3))):
        sampled = draw(st.lists(st.tuples(TOKEN, FLOAT32, FLOAT32), min_size=1, max_size=5))
        t.append_policy(*map(list, zip(*sampled, strict=True)))
        if draw(st.booleans()):
            result = SandboxResult(
                draw(st.sampled_from(CODE_OUTCOMES)), draw(TEXT), draw(TEXT), draw(st.none() | TEXT),
                draw(st.floats(0, 1e6)),
            )  # fmt: skip
            t.calls.append(ToolCall(t.turns, draw(TEXT), result, draw(st.booleans()), draw(TEXT), (1, 3)))
            t.append_observation(draw(st.lists(TOKEN, max_size=5)))
        t.turns += 1
    t.void, t.end = draw(st.booleans()), draw(st.none() | st.sampled_from(EndReason))
    t.answer = draw(st.none() | TEXT)
    t.verdict = draw(st.none() | st.builds(Verdict, st.sampled_from(Outcome), st.none() | TEXT, TEXT))
    return t


def assert_same(one: Trajectory, other: Trajectory):
    """Every column bit for bit, and all the rest."""
    for name in COLUMNS:
        assert getattr(one, name).dtype == getattr(other, name).dtype
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    for name in ("prompt_id", "sample", "turns", "void", "end", "answer", "verdict", "calls"):
        assert getattr(one, name) == getattr(other, name), name


@given(st.lists(trajectories(), max_size=4))
def test_round_trip(episodes):
    table = to_table(episodes)
    assert table.schema == SCHEMA
    restored = from_table(table)
    assert len(restored) == len(episodes)
    for one, other in zip(episodes, restored, strict=True):
        assert_same(one, other)


def test_a_restored_record_can_go_on():
    t = Trajectory(1, 2, [5, 6])
    t.append_policy([7], [-0.5], [0.25])
    (restored,) = from_table(to_table([t]))
    for trajectory in (t, restored):
        trajectory.append_observation([8])
    assert_same(t, restored)
    assert restored.authors.tolist() == [Author.PROMPT] * 2 + [Author.POLICY, Author.TOOL]


def test_every_field_of_a_record_is_kept():
    """A new field of these classes has to be thought of in the table too."""
    assert {f.name for f in dataclasses.fields(ToolCall)} == {
        "turn", "code", "result", "valid", "observation", "span",
    }  # fmt: skip
    kept = {"prompt_id", "sample", "calls", "turns", "void", "end", "answer", "verdict"}
    assert {name for name in vars(Trajectory(0, 0, [1])) if not name.startswith("_")} == kept


@pytest.mark.parametrize("missing", ["tokens", "calls_json"])
def test_a_table_without_a_column_is_refused(missing):
    with pytest.raises(KeyError, match=missing):
        from_table(to_table([Trajectory(0, 0, [1])]).drop_columns([missing]))
