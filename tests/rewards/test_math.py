"""Judging mathematical answers in real verifier processes."""

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe

import pytest

from taorl_jax.rewards import math_worker
from taorl_jax.rewards.math import MathJudge
from taorl_jax.rewards.verdict import Outcome

RIGHT, WRONG, UNKNOWN = Outcome.RIGHT, Outcome.WRONG, Outcome.UNKNOWN
TOWER = "9^{9^{9^9}}"


@pytest.fixture(scope="module")
def judge():
    with MathJudge(workers=2, wall_s=60) as judge:
        yield judge


def children(pid: int) -> list[int]:
    """Process ids of the living children of `pid`, whichever of its threads started them."""
    lists = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in lists for child in path.read_text().split()]


def wait_until(condition):
    """A generous bound: what is tested is that it happens at all."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("gold", "answer", "outcome"),
    [
        ("137", "137", RIGHT),
        ("137", "0137", RIGHT),
        ("137", "1", WRONG),
        ("-1", "1", WRONG),
        ("0.5", r"\frac{1}{2}", RIGHT),
        (r"\frac{1}{3}", "0.333333", RIGHT),  # floats agree to 6 decimals
        (r"\frac{1}{3}", "0.33", WRONG),
        (r"$\frac{1}{2}$", "0.5", RIGHT),  # gold written with its delimiters
        (r"\text{Evelyn}", "Evelyn", RIGHT),
        ("x^2+2x+1", "(x+1)^2", RIGHT),
        ("x=1,y=2", "y=2,x=1", RIGHT),
        ("1000", "1,000", RIGHT),
        ("840", "840,840", WRONG),
        ("1, 2", "1", WRONG),  # part of the answer, and more than the answer
        ("1", "1, 2", WRONG),
        ("3", "3 or 4", WRONG),
        ("(1,2)", "(2,1)", WRONG),
        ("[0,1)", "(0,1)", WRONG),
        ("0.00000001", "0.00000002", WRONG),  # equal to 6 decimals
        ("10^{-8}", r"2\cdot 10^{-8}", WRONG),
        ("3", "x=3", RIGHT),
        ("3", "2+1=3", RIGHT),
        ("3", "4=3", WRONG),
        ("137", "}", WRONG),
    ],
)
def test_verdicts(judge, gold, answer, outcome):
    verdict = judge.judge(gold, answer)
    assert verdict.outcome is outcome, verdict.reason
    assert verdict.answer == answer


@pytest.mark.parametrize("answer", [None, "", "  "])
@pytest.mark.parametrize("gold", ["", "5"])
def test_no_answer_is_wrong_even_if_there_is_no_gold(judge, gold, answer):
    verdict = judge.judge(gold, answer)
    assert (verdict.outcome, verdict.reason) == (WRONG, "no answer")


def test_a_missing_gold_or_a_failing_verifier_is_unknown_and_counted():
    with MathJudge() as judge:
        assert judge.judge(" ", "5").outcome is UNKNOWN
        assert judge.judge(r"\frac{1}{0}", "2").outcome is UNKNOWN
        assert judge.judge(r"\frac{1}{2}", "0.5").outcome is RIGHT
        assert judge.unknown == {"no gold answer": 1, "the verifier failed with ValueError": 1}


def test_many_keep_their_order(judge):
    pairs = [("137", None), (r"\frac{1}{2}", "0.5"), ("137", "{"), ("137", "137"), ("2", "2^1")]
    verdicts = judge.judge_many(pairs)
    assert [verdict.outcome for verdict in verdicts] == [WRONG, RIGHT, WRONG, RIGHT, RIGHT]
    assert [verdict.answer for verdict in verdicts] == [None, "0.5", "{", "137", "2^1"]
    assert judge.judge_many([]) == []


def test_same_verdicts_from_main_thread_threads_and_event_loop(judge):
    pairs = [("2", f"{k}^1") for k in range(5)] + [("x+1", f"{k}+x") for k in range(5)]
    expected = [verdict.outcome for verdict in judge.judge_many(pairs)]
    assert expected == [WRONG, WRONG, RIGHT, WRONG, WRONG, WRONG, RIGHT, WRONG, WRONG, WRONG]

    def outcome(pair):
        return judge.judge(*pair).outcome

    async def in_event_loop():
        return [outcome(pair) for pair in pairs]

    async def beside_event_loop():
        return await asyncio.gather(*(asyncio.to_thread(outcome, pair) for pair in pairs))

    assert [outcome(pair) for pair in pairs] == expected
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(outcome, pairs)) == expected
    assert asyncio.run(in_event_loop()) == expected
    assert asyncio.run(beside_event_loop()) == expected


def test_power_towers_are_unknown_and_the_next_answer_is_judged():
    with MathJudge(wall_s=1.5) as judge:
        verdicts = judge.judge_many([("3", TOWER), ("3", TOWER + "+1"), (r"\frac{1}{2}", "0.5")])
    assert [verdict.outcome for verdict in verdicts] == [UNKNOWN, UNKNOWN, RIGHT]
    assert judge.unknown == {"the verifier ran for more than 1.5 s": 2}


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no limit on address space")
def test_out_of_memory_is_unknown():
    with MathJudge(wall_s=120, memory_mb=256) as judge:
        assert judge.judge("1", "2^{2^{33}}").outcome is UNKNOWN  # a number of 1 GiB
        assert judge.unknown == {"the verifier ran out of memory": 1}
        assert judge.judge(r"\frac{1}{2}", "0.5").outcome is RIGHT


@pytest.mark.parametrize("limits", [{"workers": 0}, {"wall_s": 0}, {"memory_mb": 64}])
def test_limits_that_no_answer_could_meet_are_refused(limits):
    with pytest.raises(ValueError, match=next(iter(limits))):
        MathJudge(**limits)


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
def test_integers_and_equal_strings_start_no_process_and_leaving_ends_them_all():
    before = set(children(os.getpid()))
    with MathJudge(workers=2) as judge:
        judge.judge_many([("5", "5"), ("5", "6"), ("5", None), (r"\frac{1}{2}", r"\frac{1}{2}")])
        assert set(children(os.getpid())) == before
        judge.judge("5", "5.0")
        assert len(set(children(os.getpid())) - before) == 1
    assert set(children(os.getpid())) == before


@linux
def test_a_worker_that_dies_is_replaced():
    before = set(children(os.getpid()))
    with MathJudge() as judge:
        assert judge.judge("5", "5.0").outcome is RIGHT
        (worker,) = set(children(os.getpid())) - before
        os.kill(worker, signal.SIGKILL)
        assert judge.judge("5", "5.0").reason == "the verifier died"
        assert judge.judge("5", "5.0").outcome is RIGHT


@linux
def test_an_idle_worker_dies_with_its_parent():
    program = (
        "import time; from taorl_jax.rewards.math import MathJudge\n"
        "print(MathJudge().judge('5', '5.0').outcome.name, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "RIGHT\n"
        (worker,) = children(parent.pid)
        parent.kill()
    # a process that ended but that nobody has reaped yet has no command line left
    wait_until(lambda: not pathlib.Path(f"/proc/{worker}").exists() or not _command(worker))


def _command(pid: int) -> str:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_busy_worker_whose_parent_is_gone_ends_by_its_cpu_limit():
    ours, theirs = Pipe()
    with theirs:
        arguments = (math_worker.__file__, theirs.fileno(), 1024, 0.5)
        worker = subprocess.Popen([sys.executable, "-P", *map(str, arguments)], pass_fds=[theirs.fileno()])
    with ours:
        assert ours.recv() == "ready"
        ours.send(("3", TOWER))
    assert worker.wait(120) == -signal.SIGXCPU
