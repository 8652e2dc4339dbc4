"""Avg@K and Pass@K over N problems with K samples each.

Unknown verdicts (a verifier's limit, a sandbox outage) are neither right nor wrong: they leave the number
of samples of their problem and are counted.
"""

import dataclasses

import numpy as np

Z_95 = 1.959964  # 97.5th percentile of the standard normal distribution


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
      problems: problems with at least k judged samples.
      skipped: problems with fewer, left out.
      unknown: samples without a verdict.
    """

    value: float
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


def avg_at_k(right_NxK, judged_NxK) -> AvgAtK:
    """Avg@K with its 95 % interval.

    Samples of one problem are alike, so the problem is the unit: the interval is the mean of the problems'
    means +- 1.96 standard errors (normal approximation, unbiased std over problems), cut to [0, 1]. It speaks
    of other problems of the same kind, not of other samples of these. From a single problem no spread can
    be estimated: the interval is all of [0, 1]. It has width 0 when all problems have the same mean.

    Args:
      right_NxK: bool; not read where `judged_NxK` is False.
      judged_NxK: bool, the verdict is right or wrong.

    Raises:
      ValueError: the arrays are not of one shape [N, K].
    """
    correct_N, judged_N, unknown = _counts(right_NxK, judged_NxK)
    scored = judged_N > 0
    means = correct_N[scored] / judged_N[scored]
    problems = len(means)
    if problems == 0:
        return AvgAtK(float("nan"), 0.0, 1.0, 0, unknown)
    value = float(means.mean())
    if problems == 1:
        return AvgAtK(value, 0.0, 1.0, 1, unknown)
    margin = Z_95 * float(means.std(ddof=1)) / problems**0.5
    return AvgAtK(value, max(value - margin, 0.0), min(value + margin, 1.0), problems, unknown)


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
    value = float(np.mean(values)) if values else float("nan")
    return PassAtK(value, len(values), len(judged_N) - len(values), unknown)
