"""The code-block automaton against a line-by-line scan of the same text."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_use.line_scan import MARK, scan

from taorl_jax.tool_use.code_block import SPECIAL, TABLE, CodeBlock, State, advance, find_code, prose


def tokens_of(text: bytes, cuts=()) -> list[bytes | None]:
    """Cuts text into tokens at the given places, and around every MARK."""
    marks = [i for i, byte in enumerate(text) if byte == ord(MARK)]
    edges = {0, len(text), *marks, *(i + 1 for i in marks), *(cut % (len(text) + 1) for cut in cuts)}
    pieces = [text[a:b] for a, b in pairwise(sorted(edges))]
    return [None if piece == MARK else piece for piece in pieces]


# For each state a text that leads to it from the start of a segment.
ACCESS = {
    State.LINE_START: b"",
    State.TEXT: b"a",
    State.OPEN_1: b"`",
    State.OPEN_2: b"``",
    State.TAG: b"```",
    State.TAG_P: b"```p",
    State.TAG_PY: b"```py",
    State.TAG_PYT: b"```pyt",
    State.TAG_PYTH: b"```pyth",
    State.TAG_PYTHO: b"```pytho",
    State.TAG_END: b"```python ",
    State.TAG_FOREIGN: b"```cpp",
    State.CODE_LINE_START: b"```py\n",
    State.CODE: b"```py\na",
    State.CODE_1: b"```py\n`",
    State.CODE_2: b"```py\n``",
    State.FOREIGN_LINE_START: b"```cpp\n",
    State.FOREIGN: b"```cpp\na",
    State.FOREIGN_1: b"```cpp\n`",
    State.FOREIGN_2: b"```cpp\n``",
    State.HIT: b"```py\n```",
}
# Continuations that tell any two states apart by the block that is found.
PROBES = [
    start + end
    for start in [b"", b"`", b"``", b"```", b"a`", b"\n```"]
    for end in [b"", b"\n7\n```", b"\n7\n```\n8\n```", b"\n```\n8\n```", b"\n```\n9\n```\n8\n```"]
] + [b"python"[n:] + b"\n7\n```" for n in range(6)]


@pytest.mark.parametrize("state", State)
def test_every_transition_equals_a_scan_by_lines(state):
    for symbol in range(256):  # 0 is MARK
        for probe in PROBES:
            text = ACCESS[state] + bytes([symbol]) + probe
            assert find_code(tokens_of(text)) == scan(text), text


def test_the_probes_tell_all_states_apart():
    answers = {tuple(scan(ACCESS[state] + probe) is None for probe in PROBES) for state in State}
    assert len(answers) == len(State)


fence_lines = st.tuples(
    st.sampled_from([b"```", b"```", b"````", b" ```", b"``"]),
    st.sampled_from([b"", b"py", b"python", b"pytho", b"pythons", b"cpp", b"Python"]),
    st.sampled_from([b"", b"", b" ", b"\t\r", b" x", b"`", MARK]),
).map(b"".join)
body_lines = st.sampled_from(
    [b"", b"x = 1", b"``", b"`", b"a ```", "é".encode(), b"\xff", MARK, b"``" + MARK + b"`"]
)
texts = st.lists(fence_lines | body_lines | st.just(b"```"), max_size=12).map(b"\n".join)
cut_places = st.lists(st.integers(0, 200), max_size=12)


@settings(max_examples=500, deadline=None)
@given(text=texts, cuts=cut_places)
def test_find_code_equals_a_scan_by_lines(text, cuts):
    assert find_code(tokens_of(text, cuts)) == scan(text)


@settings(max_examples=200, deadline=None)
@given(text=texts, cuts=cut_places)
def test_advance_ends_in_hit_exactly_if_there_is_a_block(text, cuts):
    state = State.LINE_START
    for token in tokens_of(text, cuts):
        state = advance(state, token)
    assert (state == State.HIT) == (scan(text) is not None)


@pytest.mark.parametrize(
    "text, code, prose",
    [
        ("```python\nprint(1)\n```", "print(1)", ""),
        ("Let me see.\n```py\na = 1\n\nprint(a)\n```", "a = 1\n\nprint(a)", "Let me see.\n"),
        ("```\nprint(1)\n``` and more", "print(1)", ""),
        ("```python \t\r\nprint(1)\n```", "print(1)", ""),
        ("```python\n```", "", ""),
        ("```python\n\n```", "", ""),
        ("```python\nx = '```'\n  ```\n```", "x = '```'\n  ```", ""),  # only column 0 closes
        ("```cpp\nint a;\n```\n```py\n1\n```", "1", "```cpp\nint a;\n```\n"),
        ("```Python\n1\n```\n```py\n2\n```", "2", "```Python\n1\n```\n"),
        ("```cpp\n```python\n1\n```\n2\n```", "2", "```cpp\n```python\n1\n"),
        ("```python``` is a tag\n```\n1\n```", "1", "```python``` is a tag\n"),
        ("````\n```\n1\n```", "1", "````\n"),
        (" ```python\n1\n```\n2\n```", "2", " ```python\n1\n"),
        ("```py\né\n```", "é", ""),
    ],
)
def test_blocks_by_hand(text, code, prose):
    assert find_code([text.encode()]) == CodeBlock(code, prose)
    assert find_code([bytes([byte]) for byte in text.encode()]) == CodeBlock(code, prose)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no code",
        "```python\nprint(1)",
        "```python\nprint(1)\n``",
        "```python",
        "a ```python\n1\n",
        "```cpp\n1\n```",
    ],
)
def test_no_complete_block(text):
    assert find_code([text.encode()]) is None


@pytest.mark.parametrize(
    "segment, expected",
    [
        ([b"``", None, b"`python\n1\n```"], None),  # an opening fence is broken
        ([b"```py", None, b"thon\n1\n```"], None),
        ([None, b"```python\n1\n```"], None),  # column 0 is taken
        ([b"```py\n1\n``", None, b"`\n2\n```"], CodeBlock("1\n```\n2", "")),  # a closing one too
        ([b"```py\n1", None, b"2\n```"], CodeBlock("12", "")),  # but the block goes on
        ([b"```cpp\n", None, b"\n```\n```py\n3\n```"], CodeBlock("3", "```cpp\n\n```\n")),
    ],
)
def test_special_tokens_break_a_fence_and_leave_no_block(segment, expected):
    assert find_code(segment) == expected


def test_broken_utf8_is_replaced():
    assert find_code([b"\xff\n```py\n\xc3\n```"]) == CodeBlock("\ufffd", "\ufffd\n")


def test_the_table_covers_every_symbol_and_hit_is_never_left():
    assert TABLE.shape == (len(State), SPECIAL + 1)
    assert set(TABLE[State.HIT]) == {State.HIT}


def test_prose_stops_at_an_unfinished_python_block():
    assert prose([b"so\n```python\nprint(r'\\boxed{1}')"]) == "so\n"
    assert prose([b"so\n```latex\n\\boxed{1}\n```\n", None]) == "so\n```latex\n\\boxed{1}\n```\n"
