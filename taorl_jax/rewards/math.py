"""Judging mathematical answers, with limits that live outside the thing they limit."""

import atexit
import collections
import functools
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

from ml_collections import ConfigDict

from taorl_jax.rewards.extraction import last_boxed
from taorl_jax.rewards.math_process import MathProcess
from taorl_jax.rewards.verdict import Outcome, Verdict

_INTEGER = re.compile(r"[+-]?[0-9]{1,100}")
_PROGRESS_S = 0.2
_LEAST_MEMORY_MB = 256  # sympy and math-verify take 64 MiB before the first answer


class MathJudge:
    """Judges answers against gold answers, from any thread; a context manager that ends its processes.

    Decided on the spot, without a process: no answer is wrong; equal strings are right; plain integers
    are compared as integers. All else is compared by sympy in a worker process, started at its first use.
    Over the wall or memory limit, and whenever the verifier fails, the verdict is UNKNOWN, `unknown` counts
    the reason, and the worker is replaced. One worker more than are used stands ready, so that the next
    answer does not even wait for the replacement to start.

    Attributes:
      unknown: Counter, reason -> how many verdicts were UNKNOWN for it.
    """

    def __init__(self, workers: int = 1, wall_s: float = 5.0, memory_mb: int = 1024):
        """Sets the limits; starts nothing.

        Args:
          workers: answers compared at once, at least 1.
          wall_s: wall time of one comparison, seconds.
          memory_mb: address space of a worker, MiB, at least 256 (not enforced on macOS).

        Raises:
          ValueError: a limit that no answer could meet.
        """
        if workers < 1 or wall_s <= 0 or memory_mb < _LEAST_MEMORY_MB:
            raise ValueError(
                "the answer verifier needs workers >= 1, wall_s > 0 (seconds) and "
                f"memory_mb >= {_LEAST_MEMORY_MB} (MiB), not {workers}, {wall_s} and {memory_mb}"
            )
        self.unknown: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()
        self._workers = [MathProcess(wall_s, memory_mb) for _ in range(workers + 1)]
        self._idle = collections.deque(self._workers)
        self._turns = threading.Semaphore(workers)

    @classmethod
    def from_config(cls, reward: ConfigDict) -> "MathJudge":
        """The judge with the limits of the config's section `reward`."""
        return cls(reward.workers, reward.wall_s, reward.memory_mb)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Ends the workers; call it when no judgement is running."""
        for worker in self._workers:
            worker.stop()

    def judge(self, gold: str, answer: str | None) -> Verdict:
        r"""Judges one answer; the arguments cannot be swapped.

        Args:
          gold: the reference answer, as a box would hold it.
          answer: an answer, or a text in which the last `\boxed` holds it; None: there is none.

        Raises:
          VerifierFailed: a worker did not start.
        """
        if answer is not None and r"\boxed" in answer:
            answer = last_boxed(answer)
        outcome, reason = _at_a_glance(gold, answer) or self._verify(gold, answer)
        return self._counted(Verdict(outcome, answer, reason))

    def judge_many(
        self,
        pairs: list[tuple[str, str | None]],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Verdict]:
        """Judges (gold, answer) pairs, as many at a time as there are workers; keeps their order.

        `progress` is called a few times a second with (judged, wanted). What it raises ends the judging
        once the answers that are being judged are done: none of the others is begun.
        """
        with ThreadPoolExecutor(len(self._workers)) as threads:
            calls = [threads.submit(self.judge, *pair) for pair in pairs]
            try:
                for done, call in enumerate(calls):
                    progress(done, len(calls))
                    while not call.done():
                        wait([call], _PROGRESS_S)
                        progress(done, len(calls))
                return [call.result() for call in calls]
            finally:
                threads.shutdown(wait=False, cancel_futures=True)

    def check_golds(self, golds: list[str]) -> list[Verdict]:
        """Whether gold answers can be read and equal themselves, by the algebra that would judge answers.

        Only RIGHT will do: any other gold would judge its own copy by luck, and every other spelling wrongly.
        """

        def check(gold):
            if _INTEGER.fullmatch(gold.strip()):
                return Verdict(Outcome.RIGHT, gold, "an integer")
            outcome, reason = self._verify(gold, None)
            return Verdict(outcome, gold, reason)

        with ThreadPoolExecutor(len(self._workers)) as threads:
            return list(threads.map(check, golds))

    def _counted(self, verdict: Verdict) -> Verdict:
        if verdict.outcome is Outcome.UNKNOWN:
            with self._lock:
                self.unknown[verdict.reason] += 1
        return verdict

    def _verify(self, gold: str, answer: str | None) -> tuple[Outcome, str]:
        with self._turns:
            with self._lock:
                worker = self._idle.pop()
                worker.start()
                self._idle[-1].start()  # the spare one
            try:
                return worker.ask(gold, answer)
            finally:
                with self._lock:  # one that was replaced is still starting: to the other end with it
                    (self._idle.append if worker.ready else self._idle.appendleft)(worker)


def judge(gold: str, prediction: str | None) -> Verdict:
    r"""Judges one prediction with this process's shared judge: for scripts, notebooks and tests.

    Training and evaluation open a `MathJudge` with the limits of the config instead.

    Args:
      gold: the reference answer, as a box would hold it.
      prediction: an answer, or a text in which the last `\boxed` holds it; None: there is none.
    """
    return _shared(os.getpid()).judge(gold, prediction)


def judge_many(pairs: list[tuple[str, str | None]]) -> list[Verdict]:
    """Judges (gold, prediction) pairs with this process's shared judge; keeps their order."""
    return _shared(os.getpid()).judge_many(pairs)


@functools.cache
def _shared(process_id: int) -> MathJudge:
    """One judge a process: a fork must not read its parent's pipes."""
    shared = MathJudge(workers=min(os.cpu_count() or 1, 8))
    atexit.register(shared.__exit__)
    return shared


def _at_a_glance(gold: str, answer: str | None) -> tuple[Outcome, str] | None:
    """Outcome and reason where no algebra is needed; None where it is."""
    gold, answer = gold.strip(), (answer or "").strip()
    if not answer:
        return Outcome.WRONG, "no answer"
    if not gold:
        return Outcome.UNKNOWN, "no gold answer"
    if gold == answer:
        return Outcome.RIGHT, "same text"
    if _INTEGER.fullmatch(gold) and _INTEGER.fullmatch(answer):
        equal = int(gold) == int(answer)
        return (Outcome.RIGHT, "same integer") if equal else (Outcome.WRONG, "another integer")
    return None
