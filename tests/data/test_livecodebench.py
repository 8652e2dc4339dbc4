"""The release format, packed here from self-written problems; and pickles that want more than to be read."""

import base64
import json
import pickle
import zlib

import pytest

from taorl_jax.data.livecodebench import decode_tests
from taorl_jax.data.problem import CodeTest
from taorl_jax.data.sources import FileProblems


def pack(value) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def row(**changes):
    public = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
    private = [{"input": "5 6\n", "output": "11\n", "testtype": "stdin"}]
    return {
        "question_title": "Sum",
        "question_content": "Print the sum of two numbers.",
        "platform": "own",
        "question_id": "own_1",
        "starter_code": "",
        "difficulty": "easy",
        "public_test_cases": json.dumps(public),
        "private_test_cases": pack(json.dumps(private)),
        "metadata": "{}",
    } | changes


def write(tmp_path, *rows):
    path = tmp_path / "test.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_programs_that_read_and_print(tmp_path):
    (problem,) = FileProblems(write(tmp_path, row()))
    assert problem.tests == (CodeTest("1 2\n", "3\n"), CodeTest("5 6\n", "11\n"))
    assert (problem.id, problem.tier, problem.answer) == ("own_1", "easy", "")
    assert problem.text.startswith("Print the sum") and "reads from stdin" in problem.text


def test_functions_that_are_called(tmp_path):
    case = [{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}]
    (problem,) = FileProblems(
        write(
            tmp_path,
            row(
                public_test_cases=json.dumps(case),
                private_test_cases=json.dumps(case),  # unpacked in small releases
                starter_code="class Solution:\n    def shift(self, xs, k):\n        ",
                metadata='{"func_name": "shift"}',
            ),
        )
    )
    assert problem.tests == (CodeTest("[1, 2]\n3", "[4, 5]", "shift"),) * 2
    assert "def shift(self, xs, k):" in problem.text


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('the pickle was run')",)


class Harmless:
    pass


@pytest.mark.parametrize(
    "hostile",
    [
        pack(Bomb()),
        pack([Bomb()]),
        pack(print),
        pack(Harmless),
        base64.b64encode(zlib.compress(b"cos\nsystem\n(S'true'\ntR.")).decode(),  # protocol 0, by hand
        base64.b64encode(zlib.compress(b"\x80\x04\x95")).decode(),
        base64.b64encode(zlib.compress(b"")).decode(),
        base64.b64encode(b"not compressed").decode(),
        "no base64!",
        pack([1, 2]),
        pack("no json"),
    ],
)
def test_what_is_no_packed_text_is_refused_and_nothing_is_run(hostile):
    with pytest.raises(ValueError, match=r"unpacked|not text|Expecting value"):
        decode_tests(hostile)


def test_malformed_tests_are_refused_with_their_row(tmp_path):
    for changes, reason in (
        ({"public_test_cases": "[]", "private_test_cases": "[]"}, "no tests"),
        ({"public_test_cases": '[{"input": 1, "output": "2"}]'}, "without `input` and `output` text"),
        ({"public_test_cases": '[{"input": "", "output": "", "testtype": "other"}]'}, "neither stdin nor"),
        ({"public_test_cases": '[{"input": "", "output": "", "testtype": "functional"}]'}, "no `func_name`"),
        ({"private_test_cases": pack(Bomb())}, "want to load builtins.exec"),
    ):
        with pytest.raises(ValueError, match=rf"test\.jsonl:1: .*{reason}"):
            FileProblems(write(tmp_path, row(**changes)))


@pytest.mark.parametrize(
    ("arguments", "returned", "reason"),
    [
        ("[1, 2", "3", "Expecting"),
        ("[" * 100_000, "3", "nested too deeply"),
        ("1", "three of them", "is no value"),
        ("1", "f(", "is no value"),
        ("1", "[" * 100_000, "is no value"),
        ("1", "{[]: 1}", "is no value"),
    ],
)
def test_calls_that_cannot_be_read_are_refused_with_their_row(tmp_path, arguments, returned, reason):
    case = [{"input": arguments, "output": returned, "testtype": "functional"}]
    changed = row(public_test_cases=json.dumps(case), metadata='{"func_name": "f"}')
    with pytest.raises(ValueError, match=rf"test\.jsonl:1: .*{reason}"):
        FileProblems(write(tmp_path, changed))
