"""Problems from files. A row that cannot be trusted stops the run at load time, not in the middle of it."""

import json
import pathlib

from taorl_jax.data.problem import Problem
from taorl_jax.errors import MissingFile, UserError

FAULTS_SHOWN = 10


class DataError(UserError, ValueError):
    """A data file that cannot be used; the message names the file, the lines and the reasons."""


class JsonlProblems:
    """Random-access source of the problems in a JSON Lines file (UTF-8), in the file's order.

    A row is an object with `problem` or `question`, `answer`, and optionally `id` (default: the line's
    number) and `tier`; strings or numbers, numbers kept as they are written. Other keys are ignored, and so
    are blank lines.

    Args:
      path: the file.
      setting: the config key that the path came from, for messages.

    Raises:
      MissingFile: there is no such file; the message names the setting.
      DataError: the file is empty or has malformed rows; the message lists the first of them.
    """

    def __init__(self, path, *, setting: str = "data.train"):
        path = pathlib.Path(path)
        if not path.is_file():
            raise MissingFile(f"{setting}: no such file: {path}")
        self._problems, faults = _read(path)
        if faults:
            shown = "".join(f"\n  {path}:{number}: {reason}" for number, reason in faults[:FAULTS_SHOWN])
            more = f"\n  and {len(faults) - FAULTS_SHOWN} more" if len(faults) > FAULTS_SHOWN else ""
            raise DataError(f"{setting}: {len(faults)} malformed row(s); mend or remove them:{shown}{more}")
        if not self._problems:
            raise DataError(f"{setting}: no problems in {path}")

    def __len__(self) -> int:
        return len(self._problems)

    def __getitem__(self, index) -> Problem:
        return self._problems[index]


def _read(path: pathlib.Path) -> tuple[list[Problem], list[tuple[int, str]]]:
    """The good rows, and (line number, reason) of the bad ones."""
    problems, faults, line_of = [], [], {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                problem = parse_row(line, number)
                if problem.id in line_of:
                    raise ValueError(f"id {problem.id!r} was already used in line {line_of[problem.id]}")
            except ValueError as error:
                faults.append((number, str(error)))
                continue
            line_of[problem.id] = number
            problems.append(problem)
    return problems, faults


def parse_row(line: bytes, number: int) -> Problem:
    """The problem in line `number` of a file; ValueError says what is wrong with it."""
    # Numbers stay text: "0.10" and a 30-digit integer must reach the judge as they were written.
    row = json.loads(
        line.decode("utf-8-sig"), parse_int=str, parse_float=str, parse_constant=_refuse_constant
    )
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    if ("problem" in row) == ("question" in row):
        raise ValueError("needs exactly one of the fields `problem` and `question`")
    return Problem(
        id=_field(row, "id") if "id" in row else str(number),
        text=_field(row, "problem" if "problem" in row else "question"),
        answer=_field(row, "answer"),
        tier=_field(row, "tier") if "tier" in row else "",
    )


def _field(row: dict, name: str) -> str:
    if name not in row:
        raise ValueError(f"field `{name}` is missing")
    value = row[name]
    if not isinstance(value, str):
        raise ValueError(f"field `{name}` must be text or a number, not {json.dumps(value)[:40]}")
    if not value.strip():
        raise ValueError(f"field `{name}` is empty")
    value.encode("utf-8")  # a lone surrogate passes JSON and would fail in the tokenizer, much later
    return value


def _refuse_constant(text: str):
    raise ValueError(f"{text} is not a JSON number")
