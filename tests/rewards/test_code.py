"""Programs judged by tests in the real sandbox."""

import socket

import pytest

from taorl_jax.data.problem import CodeTest
from taorl_jax.rewards.code import judge_program
from taorl_jax.rewards.verdict import Outcome
from taorl_jax.tool_use.local_sandbox import LocalSandbox
from taorl_jax.tool_use.result import SandboxDown, SandboxFailure
from taorl_jax.tool_use.sandbox_client import SandboxClient

RIGHT, WRONG, UNKNOWN = Outcome.RIGHT, Outcome.WRONG, Outcome.UNKNOWN
SUM = [CodeTest("1 2\n", "3\n"), CodeTest("10 -4", "6")]
CALL = [CodeTest("[3, 1, 2]\n2", "[1, 2]", "smallest"), CodeTest("[5]\n1", "[5]", "smallest")]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with (
        LocalSandbox(
            lanes=2, min_isolation="weak", log_path=tmp_path_factory.mktemp("sandbox") / "log"
        ) as sandbox,
        SandboxClient(
            [sandbox.url], wall_s=3.0, memory_mb=256, max_concurrent=8, patience_s=60.0, min_isolation="weak"
        ) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("program", "outcome", "passed", "reason"),
    [
        ("print(sum(map(int, input().split())))", RIGHT, 2, "passed 2 tests"),
        ("print(float(sum(map(int, input().split()))))", RIGHT, 2, "passed 2 tests"),  # 3.0 is 3
        ("print(3)", WRONG, 1, "test 2 of 2: another output"),
        (
            "print(3); print()",
            WRONG,
            1,
            "test 2 of 2: another output",
        ),  # a blank line at the end is no output
        ("print('3 3')", WRONG, 0, "test 1 of 2: another output"),
        ("while True: pass", WRONG, 0, "test 1 of 2: timeout"),
        ("print(3); raise ValueError", WRONG, 0, "test 1 of 2: exception"),
        ("import sys; print(3); sys.exit(1)", WRONG, 0, "test 1 of 2: nonzero exit"),
        ("x = [0] * 10**10", WRONG, 0, "test 1 of 2: memory limit"),
        ("print(", WRONG, 0, "test 1 of 2: exception"),
        (
            "import sys; print(sum(map(int, input().split()))); print('w', file=sys.stderr)",
            RIGHT,
            2,
            "passed",
        ),
        (None, WRONG, 0, "no program"),
    ],
)
def test_programs_that_read_and_print(client, program, outcome, passed, reason):
    judged = judge_program(client, program, SUM)
    assert (judged.verdict.outcome, judged.passed, judged.tests) == (outcome, passed, 2)
    assert judged.verdict.reason.startswith(reason) and judged.verdict.answer == program
    assert judged.fraction == passed / 2


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("def smallest(xs, k): return sorted(xs)[:k]", RIGHT),
        ("class Solution:\n    def smallest(self, xs, k): return tuple(sorted(xs)[:k])", RIGHT),
        (
            "def smallest(xs, k):\n    print('[1, 2]')\n    return sorted(xs)[:k]",
            RIGHT,
        ),  # stdout is not judged
        ("def smallest(xs, k): return [float(x) for x in sorted(xs)[:k]]", RIGHT),
        ("def smallest(xs, k): return xs[:k]", WRONG),
        ("def smallest(xs, k): print(sorted(xs)[:k])", WRONG),
        ("def smallest(xs, k): return '[1, 2]'", WRONG),  # text that looks like the value
        ("def smallest(xs): return xs", WRONG),
        ("def other(xs, k): return sorted(xs)[:k]", WRONG),
        ("def smallest(xs, k): return {1, 2}", WRONG),  # no JSON value
        ("import os; os._exit(0)", WRONG),
        ("final_answer('no JSON')\nimport os\nos._exit(0)", WRONG),
        ("final_answer('[' * 50_000)\nimport os\nos._exit(0)", WRONG),  # nested deeper than can be read
    ],
)
def test_functions_that_are_called(client, program, outcome):
    assert judge_program(client, program, CALL).verdict.outcome is outcome


def test_an_exception_does_not_pass_an_empty_expected_output(client):
    silent = [CodeTest("", "")]
    assert judge_program(client, "pass", silent).verdict.outcome is RIGHT
    for program in (
        "raise ValueError",
        "1/0",
        "import sys; sys.exit(3)",
        "import os; os.kill(os.getpid(), 9)",
        "(",
    ):
        assert judge_program(client, program, silent).verdict.outcome is WRONG


def test_true_is_not_one_and_none_is_not_false(client):
    flag = [CodeTest("1", "true", "is_odd")]
    assert judge_program(client, "def is_odd(n): return n % 2 == 1", flag).verdict.outcome is RIGHT
    assert judge_program(client, "def is_odd(n): return n % 2", flag).verdict.outcome is WRONG
    nothing = [CodeTest("1", "null", "find")]
    assert judge_program(client, "def find(n): return None", nothing).verdict.outcome is RIGHT
    assert judge_program(client, "def find(n): return False", nothing).verdict.outcome is WRONG


class Faulty:
    """Lets the first `good` programs through to the sandbox, and fails on the rest."""

    def __init__(self, client, good):
        self.client, self.good = client, good

    def submit(self, code, stdin=""):
        self.good -= 1
        if self.good >= 0:
            return self.client.submit(code, stdin)
        future = self.client.submit("pass")
        future.result()
        broken = type(future)()
        broken.set_exception(SandboxFailure("no lane"))
        return broken


def test_an_outage_is_unknown_but_not_if_a_test_failed_already(client):
    judged = judge_program(Faulty(client, 1), "print(3)", SUM)
    assert (judged.verdict.outcome, judged.passed) == (UNKNOWN, 1)
    assert judged.verdict.reason == "test 2 of 2: the sandbox failed"
    assert judge_program(Faulty(client, 1), "print(4)", SUM).verdict.outcome is WRONG


def test_no_sandbox_at_all_is_raised():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with (
            SandboxClient(
                [url], wall_s=1.0, memory_mb=64, max_concurrent=2, patience_s=0.3, min_isolation="weak"
            ) as client,
            pytest.raises(SandboxDown),
        ):
            judge_program(client, "print(3)", SUM)


def test_more_output_than_the_sandbox_keeps_cannot_be_called_wrong(client):
    long = [CodeTest("", "x" * 100_000)]
    assert judge_program(client, "print('x' * 100_000)", long).verdict.outcome is UNKNOWN
    assert judge_program(client, "1/0", long).verdict.outcome is WRONG


def test_without_tests_nothing_can_pass(client):
    with pytest.raises(ValueError, match="without tests"):
        judge_program(client, "print(3)", [])
