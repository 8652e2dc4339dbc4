import re

from hypothesis import given
from hypothesis import strategies as st

from sandbox_service.zygote.output import OutputBuffer


def filled(limit, chunks):
    buffer = OutputBuffer(limit)
    for chunk in chunks:
        buffer.write(chunk)
    return buffer


@given(st.integers(1, 40), st.lists(st.binary(max_size=30), max_size=6))
def test_all_is_kept_up_to_the_limit_and_head_and_tail_above(limit, chunks):
    buffer = filled(limit, chunks)
    data = b"".join(chunks)
    assert buffer.total == len(data)
    assert buffer.truncated == (len(data) > limit)
    if not buffer.truncated:
        assert buffer.text() == data.decode("utf-8", "replace")


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="["), min_size=30, max_size=100)


@given(TEXT, st.integers(8, 29), st.integers(1, 7))
def test_a_cut_inside_a_character_leaves_no_broken_one(text, limit, size):
    data = text.encode()
    buffer = filled(limit, [data[k : k + size] for k in range(0, len(data), size)])
    head, count, tail = re.fullmatch(r"(.*)\n\[(\d+) bytes left out\]\n(.*)", buffer.text(), re.S).groups()
    assert int(count) == len(data) - limit
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head.encode()) > limit - limit // 4 - 4
    assert len(tail.encode()) > limit // 4 - 4
