"""Judging mathematical answers in real verifier processes."""

import asyncio
import json
import multiprocessing
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe

import pytest
from rewards.answer_cases import cases

from taorl_jax.rewards.math import MathJudge
from taorl_jax.rewards.math import judge as shared_judge
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


def memory_kib(pid: int) -> int:
    """Resident memory of a process."""
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])


def wait_until(condition):
    """A generous bound: what is tested is that it happens at all."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_every_kind_of_answer_gets_the_verdict_that_it_deserves(judge):
    table = cases()
    assert len(table) >= 240
    verdicts = judge.judge_many([(gold, answer) for _, gold, answer, _ in table])
    wrongly = [
        (*case, verdict.outcome.value, verdict.reason)
        for case, verdict in zip(table, verdicts, strict=True)
        if verdict.outcome is not (RIGHT if case[3] else WRONG)
    ]
    assert not wrongly


def test_signs_and_spaces_beyond_ascii(judge):
    for gold, answer in (
        ("-4", "\N{MINUS SIGN}4"),
        ("3", "\N{NO-BREAK SPACE}3"),
        (r"\pi", "\N{GREEK SMALL LETTER PI}"),
    ):
        assert judge.judge(gold, answer).outcome is RIGHT
    assert judge.judge("4", "\N{MINUS SIGN}4").outcome is WRONG


def test_the_answer_is_taken_from_the_last_box_and_handed_back(judge):
    verdict = judge.judge("0.5", r"first \boxed{3}, then \boxed{\frac{1}{2}} holds")
    assert (verdict.outcome, verdict.answer) == (RIGHT, r"\frac{1}{2}")
    assert judge.judge("3", r"\boxed{3} and \boxed{}").reason == "no answer"


@pytest.mark.parametrize("answer", [None, "", "  "])
@pytest.mark.parametrize("gold", ["", "5"])
def test_no_answer_is_wrong_even_if_there_is_no_gold(judge, gold, answer):
    verdict = judge.judge(gold, answer)
    assert (verdict.outcome, verdict.reason) == (WRONG, "no answer")


def test_a_missing_or_unreadable_gold_is_unknown_and_counted():
    with MathJudge() as judge:
        assert judge.judge(" ", "5").outcome is UNKNOWN
        assert judge.judge(r"\frac{1}{0}", "2").outcome is UNKNOWN
        assert judge.judge(r"\frac{1}{2}", "0.5").outcome is RIGHT
        assert judge.unknown == {
            "no gold answer": 1,
            "the gold answer cannot be read: a division by zero": 1,
        }


@pytest.mark.parametrize(
    ("gold", "outcome"),
    [
        ("12", RIGHT),
        (r"\frac{1}{2}", RIGHT),
        (r"\text{north}", RIGHT),
        (r"[0,\infty)", RIGHT),
        ("x=1,y=2", RIGHT),
        ("", UNKNOWN),
        (r"\frac{1}{", UNKNOWN),
        (r"\frac{1}{0}", UNKNOWN),
        ("(1,", UNKNOWN),
        ("5+", UNKNOWN),
    ],
)  # fmt: skip
def test_a_gold_must_be_readable_not_merely_the_same_text_as_itself(judge, gold, outcome):
    (verdict,) = judge.check_golds([gold])
    assert verdict.outcome is outcome, verdict.reason


def test_many_keep_their_order(judge):
    pairs = [("137", None), (r"\frac{1}{2}", "0.5"), ("137", "{"), ("137", "137"), ("2", "2^1")]
    verdicts = judge.judge_many(pairs)
    assert [verdict.outcome for verdict in verdicts] == [WRONG, RIGHT, WRONG, RIGHT, RIGHT]
    assert [verdict.answer for verdict in verdicts] == [None, "0.5", "{", "137", "2^1"]
    assert judge.judge_many([]) == []


def test_judging_many_can_be_interrupted():
    """Fifty answers that each run into the limit; the interrupt comes during the first ones."""

    def progress(done, total):
        if judge.unknown:
            raise KeyboardInterrupt

    with MathJudge(wall_s=0.5) as judge:
        with pytest.raises(KeyboardInterrupt):
            judge.judge_many([("1", TOWER)] * 50, progress)
        assert sum(judge.unknown.values()) <= 4, "one seen, and at most one more in each of two threads"


def test_same_verdicts_from_main_thread_threads_event_loop_and_another_process(judge):
    table = cases()[::6]
    pairs = [(gold, answer) for _, gold, answer, _ in table]
    expected = [RIGHT if right else WRONG for *_, right in table]

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
    program = "import sys, json; from taorl_jax.rewards.math import judge_many\n" + (
        "print(json.dumps([v.outcome.value for v in judge_many(json.load(sys.stdin))]))"
    )
    elsewhere = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(pairs), capture_output=True, text=True, check=True
    )
    assert [Outcome(name) for name in json.loads(elsewhere.stdout)] == expected


def test_a_fork_has_a_judge_of_its_own():
    assert shared_judge("0.5", r"\frac{1}{2}").outcome is RIGHT
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(shared_judge, ("0.5", r"\frac{1}{3}")).outcome is WRONG
    assert shared_judge("0.5", r"\frac{1}{2}").outcome is RIGHT


# What costs more than its limit, each in its own way; what sympy sees through at once is wrong, not unknown.
HOSTILE = (
    TOWER,
    "2^{2^{40}}",
    "100000000!",
    r"\binom{10^9}{5\cdot 10^8}",
    r"\sum_{k=1}^{10^{12}} \frac{1}{k^2}",
    "x^{" * 35 + "2" + "}" * 35,
    "10^{10^{10}} - 10^{10^{10}}",
    "(" * 3000 + "1" + ")" * 3000,
    r"\sqrt{" * 500 + "2" + "}" * 500,
    "1" * 2_000_000,
)


def test_after_ten_hostile_answers_all_workers_live_and_judge_as_before():
    with MathJudge(wall_s=1.0) as judge:
        verdicts = [judge.judge(r"\frac{1}{3}", answer) for answer in HOSTILE]
        assert [verdict.outcome for verdict in verdicts] == [UNKNOWN] * 7 + [WRONG] * 3
        assert judge.unknown.total() == 7
        assert [judge.judge("0.5", r"\frac{1}{2}").outcome for _ in range(4)] == [RIGHT] * 4


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_hostile_answers_took_is_given_back():
    before = set(children(os.getpid()))
    with MathJudge(wall_s=1.0) as judge:
        judge.judge("5", "5.0")
        usual = max(memory_kib(child) for child in set(children(os.getpid())) - before)
        for answer in HOSTILE[:3]:
            judge.judge("5", answer)
            judge.judge("5", "5.0")
        workers = set(children(os.getpid())) - before
        assert len(workers) == 2
        assert all(memory_kib(worker) < 1.5 * usual for worker in workers)


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
        assert len(set(children(os.getpid())) - before) == 2  # one at work, one ready to take its place
    assert set(children(os.getpid())) == before


@linux
def test_a_worker_that_dies_is_replaced():
    before = set(children(os.getpid()))
    with MathJudge(wall_s=60) as judge:
        assert judge.judge("5", "5.0").outcome is RIGHT
        workers = set(children(os.getpid())) - before
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        wait_until(lambda: all(map(_ended, workers)))
        assert [judge.judge("5", "5.0").outcome for _ in range(4)] == [RIGHT] * 4  # they died for no answer
        with ThreadPoolExecutor(1) as threads:
            idle = _resting(set(children(os.getpid())) - before)
            hostile = threads.submit(judge.judge, "5", TOWER)
            busy = lambda: [worker for worker in idle if _cpu_seconds(worker) > idle[worker] + 0.3]
            wait_until(busy)
            for worker in busy():
                os.kill(worker, signal.SIGKILL)
            assert hostile.result().reason == "the verifier died"
        assert judge.judge("5", "5.0").outcome is RIGHT


@linux
def test_an_idle_worker_dies_with_its_parent():
    program = (
        "import time; from taorl_jax.rewards.math import MathJudge\n"
        "print(MathJudge().judge('5', '5.0').outcome.name, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "RIGHT\n"
        workers = children(parent.pid)
        parent.kill()
    wait_until(lambda: all(map(_ended, workers)))


def _cpu_seconds(pid: int) -> float:
    times = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def _ended(pid: int) -> bool:
    """Whether a process is gone, or waits to be reaped."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _resting(pids) -> dict[int, float]:
    """The CPU seconds of processes, once none of them does anything any more."""
    readings = [{pid: _cpu_seconds(pid) for pid in pids}]
    while len(readings) < 2 or readings[-1] != readings[-2]:
        time.sleep(0.5)
        readings.append({pid: _cpu_seconds(pid) for pid in pids})
    return readings[-1]


def test_a_busy_worker_whose_parent_is_gone_ends_by_its_cpu_limit():
    ours, theirs = Pipe()
    with theirs:
        arguments = ("-m", "taorl_jax.rewards.math_worker", theirs.fileno(), 1024, 0.5)
        worker = subprocess.Popen([sys.executable, *map(str, arguments)], pass_fds=[theirs.fileno()])
    with ours:
        assert ours.recv() == "ready"
        ours.send(("3", TOWER))
    assert worker.wait(120) == -signal.SIGXCPU
