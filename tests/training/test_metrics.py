"""Rows and events: exact, durable, and taken back on resume."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from taorl_jax.training.metrics import MetricsWriter, read_metrics
from taorl_jax.training.metrics_truncation import DamagedMetrics


def record(directory, steps, resume_step=None):
    writer = MetricsWriter(directory, resume_step)
    for step in steps:
        writer.write(step, {"train/loss": step / 3})
    writer.close()


def recorded_events(directory):
    accumulator = EventAccumulator(str(directory / "tensorboard"))
    accumulator.Reload()
    if "train/loss" not in accumulator.Tags()["scalars"]:
        return []
    return [(event.step, event.value) for event in accumulator.Scalars("train/loss")]


def test_a_row_has_its_step_and_sorted_names(tmp_path):
    writer = MetricsWriter(tmp_path, None)
    writer.write(0, {"b": 2, "a": 0.1, "c": None})
    writer.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 0, "a": 0.1, "b": 2, "c": null}\n'


@given(st.floats(width=32))
def test_float32_survives_bit_for_bit(tmp_path_factory, value):
    directory = tmp_path_factory.mktemp("metrics")
    writer = MetricsWriter(directory, None)
    writer.write(1, {"x": np.float32(value)})
    writer.close()
    (row,) = read_metrics(directory / "metrics.jsonl")
    if math.isfinite(value):
        assert np.float32(row["x"]).tobytes() == np.float32(value).tobytes()
    else:
        assert row["x"] is None


def test_takes_scalars_of_jax(tmp_path):
    writer = MetricsWriter(tmp_path, None)
    writer.write(1, {"x": jnp.float32(0.1), "n": jnp.int32(3)})
    writer.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "n": 3, "x": float(np.float32(0.1))}]


def test_tensorboard_shows_the_same_numbers(tmp_path):
    record(tmp_path, [0, 1, 2])
    assert recorded_events(tmp_path) == [(step, pytest.approx(step / 3)) for step in (0, 1, 2)]


def test_flushed_rows_can_be_read_while_writing(tmp_path):
    writer = MetricsWriter(tmp_path, None)
    writer.write(1, {"train/loss": 1.0})
    writer.flush()
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "train/loss": 1.0}]
    assert recorded_events(tmp_path) == [(1, 1.0)]
    writer.close()


def test_one_row_a_step(tmp_path):
    writer = MetricsWriter(tmp_path, None)
    writer.write(1, {"x": 1.0})
    with pytest.raises(ValueError, match="step 1"):
        writer.write(1, {"y": 1.0})
    writer.close()


def test_resume_takes_back_later_rows_and_events(tmp_path):
    record(tmp_path, [0, 1, 2, 3, 4])
    record(tmp_path, [3, 4, 5], resume_step=2)
    record(tmp_path, [5, 6], resume_step=4)
    steps = [0, 1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == steps
    assert [step for step, _ in recorded_events(tmp_path)] == steps


def test_later_events_are_gone_before_new_ones_hide_them(tmp_path):
    record(tmp_path, [0, 1, 2, 3])
    record(tmp_path, [], resume_step=1)
    assert [step for step, _ in recorded_events(tmp_path)] == [0, 1]


def test_a_run_without_a_checkpoint_starts_afresh(tmp_path):
    record(tmp_path, [0, 1])
    record(tmp_path, [0], resume_step=None)
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 0, "train/loss": 0.0}]
    assert recorded_events(tmp_path) == [(0, 0.0)]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_resume_repairs_what_a_kill_left_torn(tmp_path, cut):
    record(tmp_path, [1, 2, 3])
    for path in [tmp_path / "metrics.jsonl", *(tmp_path / "tensorboard").iterdir()]:
        path.write_bytes(path.read_bytes()[:-cut])
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]
    record(tmp_path, [3], resume_step=2)
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    assert recorded_events(tmp_path) == [(step, pytest.approx(step / 3)) for step in (1, 2, 3)]


def test_resumed_rows_equal_uninterrupted_ones_byte_for_byte(tmp_path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "resumed").mkdir()
    record(tmp_path / "whole", range(6))
    record(tmp_path / "resumed", range(5))
    record(tmp_path / "resumed", range(4, 6), resume_step=3)
    whole, resumed = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "resumed"))
    assert resumed == whole


@pytest.mark.parametrize("damage", [b'{"st', b"\0\0\0", b"[1]", b"7", b"\xff", b""])
def test_a_damaged_line_in_the_middle_is_refused_with_its_number_and_left_alone(tmp_path, damage):
    path, data = tmp_path / "metrics.jsonl", b'{"step": 1}\n' + damage + b'\n{"step": 3}\n'
    path.write_bytes(data)
    for read in (read_metrics, lambda path: MetricsWriter(path.parent, resume_step=1)):
        with pytest.raises(DamagedMetrics, match=r"metrics.jsonl:2: this line is damaged .*; delete it"):
            read(path)
    assert path.read_bytes() == data
