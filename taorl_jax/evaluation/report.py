"""The tables of an evaluation, for the console, as markdown and as JSON."""

import dataclasses
import json
import math

from rich.console import Group
from rich.table import Table

from taorl_jax.evaluation.statistics import Interval, Paired
from taorl_jax.evaluation.table import METRICS, SHARES, BenchmarkTable


@dataclasses.dataclass(frozen=True)
class Report:
    """An evaluation's numbers.

    Attributes:
      title: what was evaluated.
      tables: one a benchmark.
      baseline: what it is compared with; empty without a comparison.
      differences: benchmark -> metric -> this run minus the baseline.
    """

    title: str
    tables: list[BenchmarkTable]
    baseline: str = ""
    differences: dict[str, dict[str, Paired]] = dataclasses.field(default_factory=dict)


def to_json(report: Report) -> str:
    """The whole report; intervals are [value, low, high], infinite bounds null."""
    return json.dumps(_plain(dataclasses.asdict(report)), indent=2) + "\n"


def to_markdown(report: Report) -> str:
    """The tables of a report."""
    parts = [f"# {report.title}\n", _markdown(_benchmark_rows(report))]
    parts += ["\nHow episodes ended, shares of samples:\n", _markdown(_end_rows(report))]
    if report.differences:
        parts += [f"\nMinus {report.baseline}, paired by problem:\n", _markdown(_difference_rows(report))]
    return "\n".join([*parts, "\nIn brackets: 95 % intervals, clustered by problem."]) + "\n"


def to_console(report: Report) -> Group:
    """The tables of a report."""
    tables = [_console(report.title, _benchmark_rows(report)), _console("ends", _end_rows(report))]
    if report.differences:
        tables.append(_console(f"minus {report.baseline}, paired", _difference_rows(report)))
    return Group(*tables)


def _benchmark_rows(report):
    yield ["", *(table.name for table in report.tables)]
    yield ["problems", *(str(table.problems) for table in report.tables)]
    yield ["K", *(str(table.k) for table in report.tables)]
    for metric, (label, _) in METRICS.items():
        yield [label, *(_interval(metric, table.metrics.get(metric)) for table in report.tables)]
    yield ["too long", *(str(table.not_attempted) for table in report.tables)]
    yield ["unknown", *(str(table.unknown) for table in report.tables)]


def _end_rows(report):
    yield ["", *(table.name for table in report.tables)]
    for end in sorted({end for table in report.tables for end in table.ends}):
        yield [end, *(f"{table.ends.get(end, 0):.1%}" for table in report.tables)]


def _difference_rows(report):
    yield ["benchmark", "metric", "difference", "sign", "better", "worse", "equal"]
    for benchmark, by_metric in report.differences.items():
        for metric, paired in by_metric.items():
            counts = (paired.better, paired.worse, paired.equal)
            sign = paired.sign or "undecided"
            yield [benchmark, METRICS[metric][0], _interval(metric, paired, "+"), sign, *map(str, counts)]


def _interval(metric: str, interval: Interval | Paired | None, sign: str = "") -> str:
    if interval is None or math.isnan(interval.value):
        return "-"
    scale, unit = (100, "%") if metric in SHARES else (1, "")
    bounds = ", ".join(
        f"{bound * scale:{sign}.1f}" if math.isfinite(bound) else "?"
        for bound in (interval.low, interval.high)
    )
    return f"{interval.value * scale:{sign}.2f}{unit} [{bounds}]"


def _markdown(rows):
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _console(title, rows):
    head, *body = rows
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(head):
        table.add_column(name, justify="right" if place else "left")
    for row in body:
        table.add_row(*row)
    return table


def _plain(value):
    """Without what JSON does not know."""
    if isinstance(value, dict):
        if value.keys() == {"value", "low", "high"}:
            return [_plain(value[name]) for name in ("value", "low", "high")]
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None
