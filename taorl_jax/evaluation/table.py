"""What the samples of a benchmark say: means over problems with intervals, and differences of two runs."""

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from taorl_jax.evaluation.samples import Sample
from taorl_jax.evaluation.statistics import (
    Interval,
    Paired,
    mean_interval,
    paired_difference,
    pass_at_k_of_problem,
)
from taorl_jax.rewards.verdict import Outcome

# metric -> (label, range of possible values)
METRICS = {
    "avg_at_k": ("Avg@K", (0.0, 1.0)),
    "pass_at_k": ("Pass@K", (0.0, 1.0)),
    "response_tokens": ("Len@K, policy", (0.0, float("inf"))),
    "all_tokens": ("Len@K, paper", (0.0, float("inf"))),
    "code_lines": ("code lines", (0.0, float("inf"))),
    "valid_code_ratio": ("valid code", (0.0, 1.0)),
    "calls": ("tool calls", (0.0, float("inf"))),
    "no_answer": ("no answer", (0.0, 1.0)),
    "coverage": ("coverage", (0.0, 1.0)),
}
SHARES = ("avg_at_k", "pass_at_k", "valid_code_ratio", "no_answer", "coverage")  # shown in percent


@dataclasses.dataclass(frozen=True)
class BenchmarkTable:
    """The numbers of one benchmark.

    Attributes:
      metrics: of METRICS, those that can be computed.
      problems: all of them; `not_attempted` were too long for the prompt's budget, and count as wrong.
      unknown: samples without a verdict; they leave the shares of right ones, and the coverage shows it.
      ends: reason -> share of samples that ended for it.
    """

    name: str
    k: int
    metrics: dict[str, Interval]
    problems: int
    not_attempted: int
    samples: int
    unknown: int
    ends: dict[str, float]


def per_problem(
    samples: Sequence[Sample], problems: Sequence[str], not_attempted: Sequence[str], k: int
) -> dict[str, dict[str, float]]:
    """Of each metric the problems' means over k samples: metric -> problem -> mean.

    A problem that was not attempted is wrong; it has no length. One whose verdicts are all unknown has no
    Avg@K, one with fewer than k verdicts no Pass@K: from fewer it cannot be estimated.
    """
    by_problem = collections.defaultdict(list)
    for sample in samples:
        if sample.sample < k:
            by_problem[sample.problem].append(sample)
    values = {metric: {} for metric in METRICS}
    for problem in problems:
        if problem in not_attempted:
            values["avg_at_k"][problem] = values["pass_at_k"][problem] = values["coverage"][problem] = 0.0
            continue
        for metric, value in _of_problem(by_problem[problem], k).items():
            values[metric][problem] = value
    return values


def _of_problem(samples, k):
    judged = [sample for sample in samples if sample.outcome != Outcome.UNKNOWN.value]
    right = sum(sample.outcome == Outcome.RIGHT.value for sample in judged)
    values = {"coverage": len(judged) / k}
    if judged:
        values["avg_at_k"] = right / len(judged)
    if len(judged) >= k:
        values["pass_at_k"] = pass_at_k_of_problem(len(judged), right, k)
    if samples:
        values |= {
            "response_tokens": _mean(sample.response_tokens for sample in samples),
            "all_tokens": _mean(
                sample.prompt_tokens + sample.response_tokens + sample.observation_tokens
                for sample in samples
            ),
            "code_lines": _mean(sample.code_lines for sample in samples),
            "valid_code_ratio": _mean(sample.valid_calls / max(sample.turns, 1) for sample in samples),
            "calls": _mean(sample.calls for sample in samples),
            "no_answer": _mean(sample.answer is None for sample in samples),
        }
    return values


def benchmark_table(
    name: str, samples: Sequence[Sample], problems: Sequence[str], not_attempted: Sequence[str], k: int
) -> BenchmarkTable:
    """The numbers of one benchmark, from its samples with numbers below k."""
    samples = [sample for sample in samples if sample.sample < k]
    values = per_problem(samples, problems, not_attempted, k)
    ends = collections.Counter(sample.end for sample in samples)
    return BenchmarkTable(
        name,
        k,
        {
            metric: mean_interval(list(values[metric].values()), *bounds)
            for metric, (_, bounds) in METRICS.items()
            if values[metric]
        },
        len(problems),
        len(not_attempted),
        len(samples),
        sum(sample.outcome == Outcome.UNKNOWN.value for sample in samples),
        {end: count / len(samples) for end, count in sorted(ends.items())},
    )


def differences(first: dict[str, dict[str, float]], second: dict[str, dict[str, float]]) -> dict[str, Paired]:
    """Second minus first by metric, over the problems that both have a value for (`per_problem`)."""
    result = {}
    for metric in METRICS:
        common = sorted(first[metric].keys() & second[metric].keys())
        if common:
            pairs = [[run[metric][problem] for problem in common] for run in (first, second)]
            result[metric] = paired_difference(*pairs)
    return result


def _mean(values):
    return float(np.mean(list(values)))
