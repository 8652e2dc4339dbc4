"""Takes back what a run recorded after the checkpoint that it goes on from."""

import io
import json
import pathlib

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from taorl_jax.errors import UserError
from taorl_jax.training.durable_files import write_atomically


class DamagedMetrics(UserError):
    """A line of a metrics file cannot be read; the message has the line and the way out."""


def read_rows(path: pathlib.Path) -> list[tuple[bytes, dict]]:
    """(line, row) of each finished line of a JSONL file; a last line that a kill left unfinished is none.

    Raises:
      DamagedMetrics: another line is no row.
    """
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if line.endswith(b"\n"):
            try:
                row = json.loads(line)
                row["step"]
            except (ValueError, TypeError, KeyError) as error:
                raise DamagedMetrics(
                    f"{path}:{number}: this line is damaged ({error}); delete it, or put the file back from "
                    "a copy, and go on"
                ) from error
            rows.append((line, row))
    return rows


def drop_rows_after(path: pathlib.Path, step: int) -> None:
    """Removes the rows of later steps from a JSONL file, and an unfinished last line.

    Args:
      path: file of rows with a `step`; may be absent.
      step: last step to keep; -1 keeps none.

    Raises:
      DamagedMetrics: a line cannot be read; the file is left as it is.
    """
    if not path.exists():
        return
    kept = b"".join(line for line, row in read_rows(path) if row["step"] <= step)
    if kept != path.read_bytes():
        write_atomically(path, kept)


def drop_events_after(directory: pathlib.Path, step: int) -> None:
    """Removes the events of later steps from TensorBoard files, unfinished records, and emptied files.

    Args:
      directory: folder of `events.out.tfevents.*` files; may be absent.
      step: last step to keep; -1 keeps none.
    """
    for path in sorted(directory.glob("events.out.tfevents.*")):
        events = [Event.FromString(record) for record in RawEventFileLoader(str(path)).Load()]
        kept = [event for event in events if event.step <= step]
        if not any(event.HasField("summary") for event in kept):
            path.unlink()
            continue
        data = _as_records(kept)
        if data != path.read_bytes():
            write_atomically(path, data)


def _as_records(events):
    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    for event in events:
        writer.write(event.SerializeToString())
    return buffer.getvalue()
