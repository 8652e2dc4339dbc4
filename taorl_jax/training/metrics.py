"""Metrics of a run: `metrics.jsonl`, one row a step, and the same numbers as TensorBoard events."""

import json
import math
import pathlib
import time
from collections.abc import Mapping

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from taorl_jax.training.durable_files import sync
from taorl_jax.training.metrics_truncation import drop_events_after, drop_rows_after, read_rows


class MetricsWriter:
    """Appends one row a step to `<directory>/metrics.jsonl` and events to `<directory>/tensorboard/`."""

    def __init__(self, directory: pathlib.Path, resume_step: int | None):
        """Opens the files, after dropping what a resumed run is about to write again.

        Args:
          directory: the run's folder.
          resume_step: step of the checkpoint that the run goes on from: later rows and events are
            dropped; None: the run starts afresh and every one is dropped.
        """
        self._path = directory / "metrics.jsonl"
        self._events_directory = directory / "tensorboard"
        # Step 0, the evaluation before the first update, is a row like any other.
        self._last_step = -1 if resume_step is None else resume_step
        drop_rows_after(self._path, self._last_step)
        drop_events_after(self._events_directory, self._last_step)
        self._rows = self._path.open("a", encoding="utf-8")
        self._events = EventFileWriter(str(self._events_directory))

    def write(self, step: int, metrics: Mapping[str, float | int | None]) -> None:
        """Appends a row with the names sorted and floats in full, so that runs compare bit for bit.

        Args:
          step: number of updates made; 0 before the first. Above every step written before.
          metrics: name -> scalar; what is not finite, or None, is written as null and makes no event.

        Raises:
          ValueError: the step was written already.
        """
        if step <= self._last_step:
            raise ValueError(f"metrics of step {step} come after those of step {self._last_step}")
        row = {name: _plain(metrics[name]) for name in sorted(metrics)}
        self._rows.write(json.dumps({"step": step} | row, allow_nan=False) + "\n")
        self._rows.flush()  # for people who follow the file; `flush` makes it durable
        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in row.items() if value is not None
        ]
        self._events.add_event(Event(step=step, wall_time=time.time(), summary=Summary(value=values)))
        self._last_step = step

    def flush(self) -> None:
        """Returns when everything written is on the disk."""
        self._rows.flush()
        self._events.flush()
        sync(self._path)
        for path in self._events_directory.iterdir():
            sync(path)

    def close(self) -> None:
        """Flushes and closes the files."""
        self.flush()
        self._rows.close()
        self._events.close()


def read_metrics(path: pathlib.Path) -> list[dict]:
    """The rows of a `metrics.jsonl`; a last line that a killed process left unfinished is no row.

    Raises:
      DamagedMetrics: another line cannot be read.
    """
    return [row for _, row in read_rows(pathlib.Path(path))]


def _plain(value):
    if value is None:
        return None
    if isinstance(value, int | np.integer):
        return int(value)
    value = float(value)
    return value if math.isfinite(value) else None
