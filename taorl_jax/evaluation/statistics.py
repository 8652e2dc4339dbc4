"""Avg@K, Pass@K and other means over N problems with K samples each, with intervals and paired differences.

Unknown verdicts (a verifier's limit, a sandbox outage) are neither right nor wrong: they leave the number
of samples of their problem and are counted.
"""

import dataclasses

import numpy as np

Z_95 = 1.959964  # 97.5th percentile of the standard normal distribution


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean over problems with its 95 % interval; NaN and no bounds (-inf, inf) where there is nothing."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Paired:
    """Second minus first, over the problems that both runs have.

    Attributes:
      value, low, high: mean difference and its 95 % interval, clustered by problem.
      better, worse, equal: problems by the sign of their difference.
      sign: "+" or "-" if the interval leaves out 0, else "".
    """

    value: float
    low: float
    high: float
    better: int
    worse: int
    equal: int
    sign: str


@dataclasses.dataclass(frozen=True)
class AvgAtK:
    """Share of right answers.

    Attributes:
      value: mean over problems of the share of right among judged samples; NaN if none was judged.
      low, high: 95 % interval, clustered by problem.
      problems: problems with at least one judged sample.
      unknown: samples without a verdict.
    """

    value: float
    low: float
    high: float
    problems: int
    unknown: int


@dataclasses.dataclass(frozen=True)
class PassAtK:
    """Chance that at least one of k samples is right.

    Attributes:
      value: mean over problems of the closed form; NaN if no problem has k judged samples.
      low, high: 95 % interval, clustered by problem.
      problems: problems with at least k judged samples.
      skipped: problems with fewer, left out.
      unknown: samples without a verdict.
    """

    value: float
    low: float
    high: float
    problems: int
    skipped: int
    unknown: int


def _counts(right_NxK, judged_NxK):
    right, judged = np.asarray(right_NxK, bool), np.asarray(judged_NxK, bool)
    if right.shape != judged.shape or right.ndim != 2:
        raise ValueError(
            f"need two arrays of one shape [problems, samples], not {right.shape}, {judged.shape}"
        )
    return (right & judged).sum(1), judged.sum(1), int((~judged).sum())


def mean_interval(values_N, low: float = -float("inf"), high: float = float("inf")) -> Interval:
    """The mean over problems and its 95 % interval.

    Samples of one problem are alike, so the problem is the unit: the interval is the mean of the problems'
    means +- 1.96 standard errors (normal approximation, unbiased std over problems). It speaks of other
    problems of the same kind, not of other samples of these. From a single problem no spread can be
    estimated: the interval is everything. If all problems stand at the same end of the range, as when none
    was solved, the interval reaches as far as that is no surprise at 2.5 %: 1 - 0.025^(1/N) of the range.

    Args:
      values_N: one number a problem.
      low: least possible value.
      high: greatest possible value.
    """
    values_N = np.asarray(values_N, float)
    problems = len(values_N)
    if problems == 0:
        return Interval(float("nan"), low, high)
    value = float(values_N.mean())
    if problems == 1:
        return Interval(value, low, high)
    if np.isfinite(high - low) and np.all(values_N == values_N[0]) and value in (low, high):
        reach = (1 - 0.025 ** (1 / problems)) * (high - low)
        return Interval(value, max(value - reach, low), min(value + reach, high))
    margin = Z_95 * float(values_N.std(ddof=1)) / problems**0.5
    return Interval(value, max(value - margin, low), min(value + margin, high))


def paired_difference(first_N, second_N) -> Paired:
    """Second minus first, problem by problem: what makes a problem hard for both is no noise of it.

    Args:
      first_N: one number a problem.
      second_N: the same of another run, in the same order.

    Raises:
      ValueError: they have not the same length.
    """
    first_N, second_N = np.asarray(first_N, float), np.asarray(second_N, float)
    if first_N.shape != second_N.shape or first_N.ndim != 1:
        raise ValueError(
            f"need one number a problem from both runs, not {first_N.shape} and {second_N.shape}"
        )
    differences_N = second_N - first_N
    mean = mean_interval(differences_N)
    better, worse = int((differences_N > 0).sum()), int((differences_N < 0).sum())
    sign = "+" if mean.low > 0 else "-" if mean.high < 0 else ""
    counts = (better, worse, len(differences_N) - better - worse)
    return Paired(mean.value, mean.low, mean.high, *counts, sign)


def avg_at_k(right_NxK, judged_NxK) -> AvgAtK:
    """Avg@K with its 95 % interval (`mean_interval`).

    Args:
      right_NxK: bool; not read where `judged_NxK` is False.
      judged_NxK: bool, the verdict is right or wrong.

    Raises:
      ValueError: the arrays are not of one shape [N, K].
    """
    correct_N, judged_N, unknown = _counts(right_NxK, judged_NxK)
    scored = judged_N > 0
    mean = mean_interval(correct_N[scored] / judged_N[scored], 0.0, 1.0)
    return AvgAtK(mean.value, mean.low, mean.high, int(scored.sum()), unknown)


def pass_at_k_of_problem(samples: int, correct: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k), as a product that cannot overflow (Chen et al., 2021).

    Args:
      samples: n, judged samples of the problem.
      correct: c, the right ones among them.
      k: samples drawn without replacement.

    Raises:
      ValueError: unless 1 <= k <= n and 0 <= c <= n. From fewer than k samples Pass@k cannot be estimated.
    """
    if not (1 <= k <= samples and 0 <= correct <= samples):
        raise ValueError(
            f"Pass@{k} of {correct} right among {samples} judged samples is not defined: sample at least k"
        )
    if samples - correct < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(samples - correct + 1, samples + 1)))


def pass_at_k(right_NxK, judged_NxK, k: int) -> PassAtK:
    """Pass@k, averaged over the problems with at least k judged samples.

    Args:
      right_NxK: bool; not read where `judged_NxK` is False.
      judged_NxK: bool, the verdict is right or wrong.
      k: samples drawn without replacement, at most K.

    Raises:
      ValueError: the arrays are not of one shape [N, K], or k is not in [1, K].
    """
    correct_N, judged_N, unknown = _counts(right_NxK, judged_NxK)
    drawn = np.shape(right_NxK)[1]
    if not 1 <= k <= drawn:
        raise ValueError(f"Pass@{k} needs at least {k} samples a problem, there are {drawn}")
    values = [
        pass_at_k_of_problem(int(n), int(c), k) for n, c in zip(judged_N, correct_N, strict=True) if n >= k
    ]
    mean = mean_interval(values, 0.0, 1.0)
    return PassAtK(mean.value, mean.low, mean.high, len(values), len(judged_N) - len(values), unknown)
