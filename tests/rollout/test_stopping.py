"""The automaton lifted to token ids: the same as reading the bytes one by one."""

import random
import tempfile

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_use.line_scan import scan, text_of

from taorl_jax.models.tokenizer import Tokenizer
from taorl_jax.rollout.stopping import build_stop_table
from taorl_jax.tool_use.code_block import State, advance, find_code
from tools.quickstart_tokenizer import train_tokenizer

# Tokens as BPE makes them: fences whole, in parts, joined with newlines and code; None is special.
TOKENS = [
    b"```", b"``", b"`", b"\n", b"\n\n", b"```\n", b"\n```", b"python", b"py", b"th", b"on", b"```python\n",
    b" ", b"\t", b"\r\n", b"cpp", b"print", b"(1)\n```\n", b"\xc3", b"\xa9", b"1\n```\nmore `", b"", None,
    b"```py\n1\n```",
]  # fmt: skip
VOCAB = len(TOKENS) + 3
ids = st.lists(st.integers(0, VOCAB - 1), max_size=25)


@pytest.fixture(scope="module")
def table():
    return build_stop_table(TOKENS, VOCAB)


def spell(token_ids):
    return [TOKENS[i] if i < len(TOKENS) else b"" for i in token_ids]


def test_equals_the_bytes_from_every_state(table):
    for state in State:
        expected = [int(advance(state, token)) for token in spell(range(VOCAB))]
        np.testing.assert_array_equal(table.next_state[state], expected)
        np.testing.assert_array_equal(table.hit[state], [after == State.HIT for after in expected])


def test_start_shapes_and_dtypes(table):
    assert table.start == State.LINE_START
    assert table.next_state.shape == table.hit.shape == (len(State), VOCAB)
    assert table.next_state.dtype == np.int8 and table.hit.dtype == np.bool_


def test_ids_beyond_the_tokenizer_change_no_state(table):
    for token in range(len(TOKENS), VOCAB):
        np.testing.assert_array_equal(table.next_state[:, token], np.arange(len(State)))


@settings(max_examples=500, deadline=None)
@given(token_ids=ids)
def test_stops_at_the_token_that_completes_the_block(table, token_ids):
    """The device's stop is the shortest prefix in which the host finds a block."""
    state, stop = table.start, None
    for position, token in enumerate(token_ids):
        hit, state = table.hit[state, token], table.next_state[state, token]
        if hit:
            stop = position
            break
    found = [find_code(spell(token_ids[: n + 1])) is not None for n in range(len(token_ids))]
    assert stop == (found.index(True) if True in found else None)


@pytest.mark.parametrize(
    "segment, stop",
    [
        ([b"```python\n", b"print", b"(1)\n```\n"], 2),  # inside a token, which goes on behind the fence
        ([b"```", b"py", b"\n", b"1\n```\nmore `"], 3),
        ([b"```python\n", b"print", b"\n", b"``", b"`", b"print"], 4),  # over several tokens
        ([b"```py\n1\n```"], 0),  # a whole block in one token
        ([b"```", b"cpp", b"\n", b"```\n", b"```", b"\n", b"```"], 6),
        ([b"```python\n", b"\n", b"``", None, b"`", b"\n", b"```"], 6),
        ([b"```", b"cpp", b"\n", b"```\n", b"print"], None),
        ([b" ", b"```python\n", b"print", b"\n"], None),
    ],
)
def test_stops_by_hand(table, segment, stop):
    state, hits = table.start, []
    for token in segment:
        index = TOKENS.index(token)
        hits.append(bool(table.hit[state, index]))
        state = table.next_state[state, index]
    assert (hits.index(True) if True in hits else None) == stop


FENCE_PARTS = [
    "```",
    "``",
    "`",
    "py",
    "python",
    "cpp",
    "\n",
    "\n\n",
    " ",
    "\t",
    "\r\n",
    "x = 1",
    "é",
    "数",
    "'''",
]
fenced = st.lists(st.sampled_from(FENCE_PARTS), max_size=30).map("".join)


@pytest.fixture(scope="module")
def bpe():
    """(a byte-level BPE whose merges run over fences, its table)."""
    rng = random.Random(0)
    texts = ["".join(rng.choices(FENCE_PARTS, k=12)) for _ in range(2000)]
    tokenizer = bytes_of_tokens(train_tokenizer(texts, 600))
    return tokenizer, build_stop_table(tokenizer.token_bytes, tokenizer.size + 8)


def bytes_of_tokens(hf_tokenizer):
    with tempfile.TemporaryDirectory() as folder:
        hf_tokenizer.save_pretrained(folder)
        return Tokenizer.load(folder)


def first_hit(table, ids):
    state = table.start
    for position, token in enumerate(ids):
        if table.hit[state, token]:
            return position
        state = table.next_state[state, token]
    return None


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_real_bpe_stops_where_a_scan_of_the_text_says(bpe, data):
    """Random ids, and ids of fenced texts; the byte 0 is left out, the mark of a special token."""
    tokenizer, table = bpe
    beyond = range(tokenizer.size, tokenizer.size + 8)
    known = [*beyond, *(i for i, token in enumerate(tokenizer.token_bytes) if token != b"\0")]
    random_ids = st.lists(st.sampled_from(known), max_size=8)
    pieces = data.draw(st.lists(random_ids | fenced.map(tokenizer.encode), max_size=5))
    ids = [token for piece in pieces for token in piece]
    segment = [tokenizer.token_bytes[i] if i < tokenizer.size else b"" for i in ids]
    blocks = [scan(text_of(segment[: n + 1])) for n in range(len(ids))]
    found = [n for n, block in enumerate(blocks) if block is not None]
    stop = first_hit(table, ids)
    assert stop == (found[0] if found else None)
    if found:
        assert find_code(segment[: stop + 1]) == blocks[stop]


def test_the_bpe_splits_fences_in_every_way(bpe):
    """Whole, in parts, and glued to what stands around them."""
    tokenizer, _ = bpe
    spelled = {token for token in tokenizer.token_bytes if token and b"`" in token}
    assert {b"`", b"``", b"```"} <= spelled
    assert any(token.endswith(b"```\n") for token in spelled)
    assert any(token.startswith(b"\t`") or token.startswith(b" `") for token in spelled)


def test_is_a_pytree_that_jit_takes(table):
    step = jax.jit(lambda table, state, token: (table.next_state[state, token], table.hit[state, token]))
    state, hit = step(table, np.int32(State.CODE_2), np.int32(TOKENS.index(b"`")))
    assert state == State.HIT and hit


def test_refuses_a_vocabulary_smaller_than_the_tokenizer():
    with pytest.raises(ValueError, match=r"vocabulary \(3\) is smaller"):
        build_stop_table(TOKENS, 3)
