"""Judging mathematical answers, with limits that live outside the thing they limit."""

import collections
import multiprocessing
import pathlib
import queue
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from taorl_jax.rewards.verdict import Outcome, Verdict

_PROGRAM = pathlib.Path(__file__).with_name("math_worker.py")
_INTEGER = re.compile(r"[+-]?[0-9]{1,100}")
_START_S = 120.0
_LEAST_MEMORY_MB = 256  # sympy and math-verify take 64 MiB before the first answer


class _Worker:
    """One verifier process, replaced whenever it dies or has to be killed."""

    def __init__(self, wall_s: float, memory_mb: int):
        self._wall_s = wall_s
        self._memory_mb = memory_mb
        self._process = None

    def _start(self):
        self._connection, theirs = multiprocessing.Pipe()
        # Not multiprocessing's spawn, which would import the parent's main module (and jax) again; and -P,
        # because otherwise this folder's math.py would hide the standard one.
        arguments = (theirs.fileno(), self._memory_mb, self._wall_s)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM), *map(str, arguments)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the parent, which still has answers to judge
            )
        self._ready = False

    def _await_ready(self):
        if self._ready:
            return
        try:
            self._ready = self._connection.poll(_START_S) and self._connection.recv() == "ready"
        except EOFError:
            self._ready = False
        if not self._ready:
            self.stop()
            raise RuntimeError(
                f"the answer verifier did not start within {_START_S:.0f} s; its own message stands above. "
                "Is math-verify installed in this environment (requirements.txt)?"
            )

    def _replace(self):
        self.stop()
        self._start()

    def ask(self, gold: str, answer: str) -> tuple[Outcome, str]:
        """Outcome and reason; if the outcome is unknown, the worker has been replaced by a fresh one."""
        if self._process is None:
            self._start()
        self._await_ready()
        outcome = Outcome.UNKNOWN
        try:
            self._connection.send((gold, answer))
            if not self._connection.poll(self._wall_s):
                return outcome, f"the verifier ran for more than {self._wall_s:g} s"
            name, reason = self._connection.recv()
            outcome = Outcome(name)
            return outcome, reason
        except (EOFError, ConnectionError):
            return outcome, "the verifier died"
        finally:  # also when interrupted: a reply left unread would be taken for that of the next answer
            if outcome is Outcome.UNKNOWN:
                self._replace()

    def stop(self):
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()
            self._process = None


class MathJudge:
    """Judges answers against gold answers, from any thread; a context manager that ends its processes.

    Decided on the spot, without a process: no answer is wrong; equal strings are right; plain integers
    are compared as integers. All else goes to math-verify in a worker process, started at its first use. Over
    the wall or memory limit, and whenever the verifier fails, the verdict is UNKNOWN, `unknown` counts the
    reason, and the worker is replaced: the answers behind it wait for its limit and a restart, no more.

    Attributes:
      unknown: Counter, reason -> how many verdicts were UNKNOWN for it.
    """

    def __init__(self, workers: int = 1, wall_s: float = 5.0, memory_mb: int = 1024):
        """Sets the limits; starts nothing.

        Args:
          workers: number of verifier processes, at least 1.
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
        self._count_lock = threading.Lock()
        self._workers = [_Worker(wall_s, memory_mb) for _ in range(workers)]
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Ends the workers; call it when no judgement is running."""
        for worker in self._workers:
            worker.stop()

    def judge(self, gold: str, answer: str | None) -> Verdict:
        """Judges one answer. `gold` and `answer` are what a box would hold; they cannot be swapped.

        Raises:
          RuntimeError: a worker did not start.
        """
        outcome, reason = _at_a_glance(gold, answer) or self._verify(gold, answer)
        if outcome is Outcome.UNKNOWN:
            with self._count_lock:
                self.unknown[reason] += 1
        return Verdict(outcome, answer, reason)

    def judge_many(self, pairs: list[tuple[str, str | None]]) -> list[Verdict]:
        """Judges (gold, answer) pairs, as many at a time as there are workers; keeps their order."""
        with ThreadPoolExecutor(len(self._workers)) as threads:
            return list(threads.map(lambda pair: self.judge(*pair), pairs))

    def _verify(self, gold: str, answer: str) -> tuple[Outcome, str]:
        worker = self._idle.get()
        try:
            return worker.ask(gold, answer)
        finally:
            self._idle.put(worker)


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
