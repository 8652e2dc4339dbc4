"""Counters and histograms in the text format of Prometheus (exposition format 0.0.4)."""

import bisect
import collections

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """What has been counted since the start."""

    def __init__(self):
        self._counters = collections.Counter()
        self._histograms = {}

    def count(self, name: str, amount: float, **labels: str):
        """Adds to a counter."""
        self._counters[name, tuple(labels.items())] += amount

    def observe(self, name: str, seconds: float):
        """Adds a duration to a histogram."""
        buckets, total = self._histograms.get(name, ([0] * (len(_SECONDS) + 1), 0.0))
        buckets[bisect.bisect_left(_SECONDS, seconds)] += 1
        self._histograms[name] = buckets, total + seconds

    def text(self, gauges: dict[tuple[str, tuple], float]) -> str:
        """Everything, with gauges that are read just now: (name, labels) -> value."""
        lines = []
        for kind, values in (("counter", self._counters), ("gauge", gauges)):
            named = collections.defaultdict(list)
            for (name, labels), value in values.items():
                named[f"sandbox_{name}" + ("_total" if kind == "counter" else "")].append((labels, value))
            for name, rows in sorted(named.items()):
                lines.append(f"# TYPE {name} {kind}")
                lines += [f"{name}{_labels(labels)} {value:g}" for labels, value in rows]
        for name, (buckets, total) in sorted(self._histograms.items()):
            lines += _histogram(f"sandbox_{name}_seconds", buckets, total)
        return "\n".join(lines) + "\n"


def _labels(labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""


def _histogram(name: str, buckets: list[int], total: float) -> list[str]:
    lines, below = [f"# TYPE {name} histogram"], 0
    for bound, number in zip((*map(str, _SECONDS), "+Inf"), buckets, strict=True):
        below += number
        lines.append(f'{name}_bucket{{le="{bound}"}} {below}')
    return [*lines, f"{name}_sum {total:g}", f"{name}_count {below}"]
