"""The observation's text, character by character, and its cuts."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taorl_jax.tool_use.observation import format_observation, is_valid_call, observation_ids
from taorl_jax.tool_use.result import CODE_OUTCOMES, SandboxResult

MARKER = re.compile(r"\n\[(\d+) characters left out\]\n")
TRACEBACK = (
    'Traceback (most recent call last):\n  File "main.py", line 1\nZeroDivisionError: division by zero\n'
)


def result(outcome="ok", stdout="", stderr=""):
    return SandboxResult(outcome, stdout, stderr, final_answer=None, wall_ms=1.0)


@pytest.mark.parametrize(
    "outcome, stdout, stderr, payload",
    [
        ("ok", "42\n", "", "42"),
        ("ok", "42\n\n", "", "42\n"),  # one newline belongs to print, the other to the output
        ("ok", "", "", ""),
        ("ok", "42\n", "RuntimeWarning: overflow\n", "42"),
        ("exception", "", TRACEBACK, "ZeroDivisionError: division by zero"),
        ("exception", "step 1\n", TRACEBACK + "\n  \n", "step 1\nZeroDivisionError: division by zero"),
        ("nonzero_exit", "step 1", "bad input\r\n", "step 1\nbad input"),
        ("timeout", "", "", "interpreter timeout"),
        ("timeout", "step 1\n", "Warning: slow\n", "step 1\ninterpreter timeout"),
        ("memory_limit", "step 1\n", "", "step 1\nmemory limit"),
    ],
)
def test_format(outcome, stdout, stderr, payload):
    text = format_observation(result(outcome, stdout, stderr), max_chars=512)
    assert text == "\nCode execution result: " + payload + "\n"


@pytest.mark.parametrize("outcome", CODE_OUTCOMES)
def test_only_ok_is_valid_whatever_was_written(outcome):
    assert is_valid_call(result(outcome)) == (outcome == "ok")
    assert is_valid_call(result(outcome, "42\n", "Warning: old\n")) == (outcome == "ok")


def test_cut_by_hand():
    text = format_observation(result(stdout="0123456789\n"), max_chars=5)
    assert text == "\nCode execution result: 012\n[5 characters left out]\n89\n"


@given(stdout=st.text(st.characters(exclude_characters="["), max_size=60), max_chars=st.integers(0, 50))
def test_cut_keeps_both_ends_and_counts_the_rest(stdout, max_chars):
    payload = stdout.removesuffix("\n")
    shown = format_observation(result(stdout=stdout), max_chars)[len("\nCode execution result: ") : -1]
    marker = MARKER.search(shown)
    if len(payload) <= max_chars:
        assert shown == payload
        return
    first, last = shown[: marker.start()], shown[marker.end() :]
    assert payload.startswith(first) and payload.endswith(last)
    assert 0 <= len(first) - len(last) <= 1 and len(first) + len(last) == max_chars
    assert int(marker.group(1)) == len(payload) - max_chars


def test_why_it_failed_survives_a_flood_of_output():
    text = format_observation(result("exception", "x" * 10_000, TRACEBACK), max_chars=512)
    assert text.endswith("x\nZeroDivisionError: division by zero\n")


class CharTokenizer:
    """One id a character, so that the ids that must remain can be written down."""

    def encode(self, text):
        return [ord(char) for char in text]


def test_observation_ids_are_cut_as_ids_and_still_end_in_a_newline():
    """Without it the policy's next segment would begin in the middle of the tool's line."""
    assert observation_ids(CharTokenizer(), "abc\n", 8) == [97, 98, 99, 10]
    assert observation_ids(CharTokenizer(), "abc\n", 4) == [97, 98, 99, 10]
    assert observation_ids(CharTokenizer(), "abc\n", 3) == [97, 98, 10]
    assert observation_ids(CharTokenizer(), "abc\n", 1) == [10]


@pytest.mark.parametrize(
    "outcome, stdout, stderr, payload, valid",
    [
        ("ok", "42\n", "", "42", True),
        ("ok", "42\n", "a\nRuntimeWarning: overflow\n", "RuntimeWarning: overflow", False),  # hides stdout
        ("ok", "", "", "", False),  # silent code counts as a failure
        ("exception", "step 1\n", TRACEBACK, "ZeroDivisionError: division by zero", False),
        ("nonzero_exit", "step 1\n", "", "step 1", True),  # its exit code is not looked at
        ("timeout", "step 1\n", "", "Timeout", False),
        ("signal", "", "", "interpreter timeout", False),
        ("ok", "0123456789\n", "", "012\n[5 characters left out]\n89", True),
    ],
)
def test_the_released_rule(outcome, stdout, stderr, payload, valid):
    ran = result(outcome, stdout, stderr)
    assert format_observation(ran, 5 if "0123" in stdout else 512, "released") == (
        "\nCode execution result: " + payload + "\n"
    )
    assert is_valid_call(ran, "released") is valid
