"""Finding the first Python block of a policy segment: one byte-level automaton for device and host.

A fence is three backticks at column 0. It opens a Python block if the rest of its line is `py`,
`python` or nothing, then at most spaces, tabs and a carriage return. Any other rest opens a foreign
block, which is passed over whole, unless it holds a backtick: then the line is text (inline code).
A block ends at the first line that starts with three backticks.
"""

import dataclasses
import enum
from collections.abc import Sequence

import numpy as np

SPECIAL = 256  # the symbol of a special token, beside the 256 bytes
SYMBOLS = 257

State = enum.IntEnum(
    "State",
    [
        "LINE_START",  # text, column 0: where a segment starts
        "TEXT",  # text, in a line that is no fence
        "OPEN_1",  # text, backticks at column 0
        "OPEN_2",
        "TAG",  # behind an opening fence: the tag so far
        "TAG_P",
        "TAG_PY",
        "TAG_PYT",
        "TAG_PYTH",
        "TAG_PYTHO",
        "TAG_END",  # behind `python`, or in the blanks behind a Python tag
        "TAG_FOREIGN",  # any other fence, up to the end of its line
        "CODE_LINE_START",  # in a Python block
        "CODE",
        "CODE_1",
        "CODE_2",
        "FOREIGN_LINE_START",  # in a foreign block
        "FOREIGN",
        "FOREIGN_1",
        "FOREIGN_2",
        "HIT",  # the closing fence of a Python block has been read; never left
    ],
    start=0,
)
BACKTICK, NEWLINE = ord("`"), ord("\n")


def _transitions() -> np.ndarray:
    """[len(State), SYMBOLS] int8: the state after one symbol."""
    s = State
    table = np.zeros((len(State), SYMBOLS), np.int8)

    def rule(states: Sequence[State], other: State, newline: State, backtick: State, special: State):
        table[states, :] = other
        table[states, NEWLINE], table[states, BACKTICK], table[states, SPECIAL] = newline, backtick, special

    rule([s.LINE_START], s.TEXT, s.LINE_START, s.OPEN_1, s.TEXT)
    rule([s.TEXT], s.TEXT, s.LINE_START, s.TEXT, s.TEXT)
    rule([s.OPEN_1], s.TEXT, s.LINE_START, s.OPEN_2, s.TEXT)
    rule([s.OPEN_2], s.TEXT, s.LINE_START, s.TAG, s.TEXT)

    python_tags = [s.TAG, s.TAG_PY, s.TAG_END]
    rule(python_tags, s.TAG_FOREIGN, s.CODE_LINE_START, s.TEXT, s.TEXT)
    foreign_tags = [s.TAG_P, s.TAG_PYT, s.TAG_PYTH, s.TAG_PYTHO, s.TAG_FOREIGN]
    rule(foreign_tags, s.TAG_FOREIGN, s.FOREIGN_LINE_START, s.TEXT, s.TEXT)
    for position, letter in enumerate(b"python"):
        table[s.TAG + position, letter] = s.TAG + position + 1
    for blank in b" \t\r":
        table[python_tags, blank] = s.TAG_END

    _block(rule, [s.CODE_LINE_START, s.CODE, s.CODE_1, s.CODE_2], closed=s.HIT)
    _block(rule, [s.FOREIGN_LINE_START, s.FOREIGN, s.FOREIGN_1, s.FOREIGN_2], closed=s.TEXT)
    table[s.HIT, :] = s.HIT
    return table


def _block(rule, states: Sequence[State], closed: State):
    line_start, inside, one, two = states
    rule([line_start], inside, line_start, one, inside)
    rule([inside], inside, line_start, inside, inside)
    rule([one], inside, line_start, two, inside)
    rule([two], inside, line_start, closed, inside)


TABLE = _transitions()
TABLE.setflags(write=False)
_ROWS = TABLE.tolist()  # plain lists are several times faster than numpy for one symbol at a time


@dataclasses.dataclass(frozen=True)
class CodeBlock:
    """The first Python block of a segment.

    Attributes:
      code: the lines between the fences, without the last newline; broken UTF-8 becomes U+FFFD.
      prose: what the policy wrote before the opening fence.
    """

    code: str
    prose: str


def symbols(token: bytes | None) -> Sequence[int]:
    """The symbols of a token: its bytes, or SPECIAL for None."""
    return (SPECIAL,) if token is None else token


def advance(state: State, token: bytes | None) -> State:
    """The state after a token's bytes (None: a special token)."""
    for symbol in symbols(token):
        state = _ROWS[state][symbol]
    return State(state)


def find_code(segment: Sequence[bytes | None]) -> CodeBlock | None:
    """The first complete Python block in the tokens of one policy segment; None if there is none.

    Special tokens (None) leave no bytes in the result; a block that they do not cut is kept.
    """
    text, fence, code = _scan(segment)
    if code is None:
        return None
    lines = text[code].removesuffix(b"\n")
    return CodeBlock(lines.decode(errors="replace"), text[:fence].decode(errors="replace"))


def prose(segment: Sequence[bytes | None]) -> str:
    """What the policy wrote before its first Python block, complete or not; all of it if there is none."""
    text, fence, _ = _scan(segment)
    return text[:fence].decode(errors="replace")


def _scan(segment) -> tuple[bytes, int | None, slice | None]:
    """The bytes up to the closing fence, where the opening fence starts, and where the code stands."""
    text = bytearray()
    fence = None
    line_start = code_start = 0
    state = State.LINE_START
    for symbol in (symbol for token in segment for symbol in symbols(token)):
        before, state = state, _ROWS[state][symbol]
        if state == State.HIT:
            return bytes(text), fence, slice(code_start, line_start)
        if symbol != SPECIAL:
            text.append(symbol)
        if symbol == NEWLINE:
            if before < State.CODE_LINE_START and state == State.CODE_LINE_START:
                fence, code_start = line_start, len(text)
            line_start = len(text)
    return bytes(text), fence, None
