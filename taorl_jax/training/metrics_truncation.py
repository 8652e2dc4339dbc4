"""Takes back what a run recorded after the checkpoint that it goes on from."""

import io
import json
import pathlib

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from taorl_jax.training.durable_files import write_atomically


def drop_rows_after(path: pathlib.Path, step: int) -> None:
    """Removes the rows of later steps from a JSONL file, and an unfinished last line.

    Args:
      path: file of rows with a `step`; may be absent.
      step: last step to keep; -1 keeps none.
    """
    if not path.exists():
        return
    data = path.read_bytes()
    finished_lines = data.splitlines(keepends=True)
    if finished_lines and not finished_lines[-1].endswith(b"\n"):
        finished_lines.pop()
    kept = b"".join(line for line in finished_lines if json.loads(line)["step"] <= step)
    if kept != data:
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
