"""Problems from files. A row that cannot be trusted stops the run at load time, not in the middle of it."""

import collections
import dataclasses
import logging
import os
import pathlib

from taorl_jax.data.files import DataError, read_rows
from taorl_jax.data.problem import Problem
from taorl_jax.data.rows import parse_row
from taorl_jax.errors import MissingFile
from taorl_jax.rewards.math import MathJudge
from taorl_jax.rewards.verdict import Outcome

FAULTS_SHOWN = 10
logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What became of a file's rows.

    Attributes:
      rows: rows of the file, blank lines not counted.
      refused: rows left out because they are malformed or their gold answer cannot be judged.
      duplicates: rows left out because their problem had been read before.
    """

    rows: int
    refused: int
    duplicates: int


class FileProblems:
    """Random-access source of the problems in a file (.jsonl, .json, .parquet), in the file's order.

    `taorl_jax.data.rows.parse_row` says which shapes of rows are known.

    Args:
      path: the file.
      setting: the config key that the path came from, for messages.
      deduplicate: keep the first of several rows with one problem; one with another answer is refused.
      max_refused: share of rows that may be refused; above it the file is.

    Attributes:
      report: LoadReport.

    Raises:
      MissingFile: there is no such file; the message names the setting.
      DataError: the file is empty or too many of its rows are malformed; the message lists the first of them.
    """

    def __init__(
        self, path, *, setting: str = "data.train", deduplicate: bool = False, max_refused: float = 0.0
    ):
        path = pathlib.Path(path)
        if not path.is_file():
            raise MissingFile(f"{setting}: no such file: {path}")
        numbered, faults, duplicates, rows = _read(path, deduplicate)
        faults = sorted(faults + _unjudgeable(numbered))
        bad = {number for number, _ in faults}
        self._problems = [problem for number, problem in numbered if number not in bad]
        self.report = LoadReport(rows, len(faults), duplicates)
        shown = "".join(f"\n  {path}:{number}: {reason}" for number, reason in faults[:FAULTS_SHOWN])
        more = f"\n  and {len(faults) - FAULTS_SHOWN} more" if len(faults) > FAULTS_SHOWN else ""
        if len(faults) > max_refused * rows:
            raise DataError(
                f"{setting}: {len(faults)} malformed row(s) of {rows}; mend or remove them, or allow a share "
                f"of them by data.max_refused={max_refused:g}:{shown}{more}"
            )
        if faults:
            logger.warning("%s: %d of %d rows refused:%s%s", path, len(faults), rows, shown, more)
        if not self._problems:
            raise DataError(f"{setting}: no problems in {path}")

    def __len__(self) -> int:
        return len(self._problems)

    def __getitem__(self, index) -> Problem:
        return self._problems[index]


def _read(path, deduplicate):
    """(number, problem) of the good rows, (number, reason) of the bad ones, and counts."""
    numbered, faults, duplicates, rows = [], [], 0, 0
    number_of_id, first_with = {}, {}
    for number, row in read_rows(path):
        rows += 1
        try:
            if isinstance(row, ValueError):
                raise row
            problem = parse_row(row, number)
            first = first_with.get(" ".join(problem.text.split())) if deduplicate else None
            if first is not None:
                if first[1] != problem.answer:
                    raise ValueError(f"the problem of row {first[0]} with another answer")
                duplicates += 1
                continue
            if problem.id in number_of_id:
                raise ValueError(f"id {problem.id!r} was already used in row {number_of_id[problem.id]}")
        except ValueError as error:
            faults.append((number, str(error)))
            continue
        number_of_id[problem.id] = number
        first_with[" ".join(problem.text.split())] = (number, problem.answer)
        numbered.append((number, problem))
    return numbered, faults, duplicates, rows


def _unjudgeable(numbered) -> list[tuple[int, str]]:
    """(number, reason) of rows whose gold answer cannot be read or does not equal itself."""
    numbers_of_gold = collections.defaultdict(list)
    for number, problem in numbered:
        if not problem.tests:
            numbers_of_gold[problem.answer].append(number)
    golds = list(numbers_of_gold)
    with MathJudge(workers=os.cpu_count() or 1, wall_s=20.0) as judge:
        verdicts = judge.check_golds(golds)
    return [
        (number, f"answer {gold[:60]!r}: {verdict.reason}")
        for gold, verdict in zip(golds, verdicts, strict=True)
        if verdict.outcome is not Outcome.RIGHT
        for number in numbers_of_gold[gold]
    ]
