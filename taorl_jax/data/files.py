"""Rows of data files: JSON Lines, JSON and parquet, each with the place that it came from."""

import json
import pathlib
from collections.abc import Iterator

from taorl_jax.errors import UserError

SUFFIXES = (".jsonl", ".json", ".parquet")


class DataError(UserError, ValueError):
    """A data file that cannot be used; the message names the file, the rows and the reasons."""


def read_rows(path: pathlib.Path) -> Iterator[tuple[int, dict | ValueError]]:
    """(number from 1, row) of every row; a row that cannot be decoded comes as the ValueError that says why.

    Numbers in JSON stay text: "0.10" and a 30-digit integer must reach the judge as they were written. Blank
    lines of JSON Lines are passed over; the number is that of the line.

    Raises:
      DataError: the whole file cannot be read.
    """
    suffix = path.suffix.casefold()
    if suffix == ".parquet":
        yield from _parquet_rows(path)
    elif suffix == ".json":
        yield from _json_rows(path)
    elif suffix == ".jsonl":
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _decoded(line)
    else:
        raise DataError(f"{path}: only {', '.join(SUFFIXES)} can be read; tools/prepare_data.py converts")


def _parquet_rows(path):
    import pyarrow.parquet  # here, because only parquet files are worth the time that it takes

    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            number = 0
            for batch in table.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield number, {name: _as_text(value) for name, value in row.items() if value is not None}
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: no readable parquet file ({error})") from error


def _json_rows(path):
    rows = _decoded(path.read_bytes(), list)
    if isinstance(rows, ValueError):
        raise DataError(f"{path}: {rows}; a .json file must hold a list of objects, a .jsonl file one a line")
    for number, row in enumerate(rows, start=1):
        yield number, row if isinstance(row, dict) else ValueError("not a JSON object")


def _decoded(data: bytes, kind=dict):
    try:
        row = json.loads(
            data.decode("utf-8-sig"), parse_int=str, parse_float=str, parse_constant=_refuse_constant
        )
    except ValueError as error:
        return error
    return row if isinstance(row, kind) else ValueError(f"not a JSON {'object' if kind is dict else 'list'}")


def _as_text(value):
    """Numbers as text, as in JSON."""
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _refuse_constant(text: str):
    raise ValueError(f"{text} is not a JSON number")
