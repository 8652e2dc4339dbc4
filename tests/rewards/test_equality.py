"""Equality of values over inputs that nobody thought of; exact arithmetic says what is right."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taorl_jax.rewards.answer_form import Group, Named, Relation, Scalar, Unreadable, Words, read_answer
from taorl_jax.rewards.equality import same

NUMBERS = st.integers(-10_000, 10_000)
SPELLINGS = (
    lambda top, bottom: rf"\frac{{{top}}}{{{bottom}}}",
    lambda top, bottom: f"{top}/{bottom}",
    lambda top, bottom: rf"\dfrac{{{3 * top}}}{{{3 * bottom}}}",
    lambda top, bottom: rf"$\left(\frac{{{-top}}}{{{-bottom}}}\right)$",
)


def equal(gold, answer):
    return same(read_answer(gold), read_answer(answer))


@given(
    NUMBERS,
    st.integers(1, 500),
    NUMBERS,
    st.integers(1, 500),
    st.sampled_from(SPELLINGS),
    st.sampled_from(SPELLINGS),
)
@settings(max_examples=150, deadline=None)
def test_fractions_are_equal_when_they_are(a, b, c, d, spell, respell):
    assert equal(spell(a, b), respell(a, b))
    assert equal(spell(a, b), respell(c, d)) == (Fraction(a, b) == Fraction(c, d))


@given(st.integers(-(10**9), 10**9), st.integers(0, 12), st.integers(-(10**9), 10**9))
@settings(max_examples=150, deadline=None)
def test_short_decimals_and_powers_of_ten_are_exact(digits, places, other):
    gold, answer = Fraction(digits, 10**places), Fraction(other, 10**places)
    text = rf"{digits} \times 10^{{-{places}}}"
    assert equal(str(gold), text)
    assert equal(str(gold), rf"{other} \cdot 10^{{-{places}}}") == (gold == answer)


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=5), st.randoms())
@settings(max_examples=100, deadline=None)
def test_order_matters_in_tuples_only(values, random):
    moved = values[:]
    random.shuffle(moved)
    listed, shuffled = (", ".join(map(str, items)) for items in (values, moved))
    assert equal(listed, shuffled) and equal(rf"\{{{listed}\}}", rf"\{{{shuffled}\}}")
    assert equal(f"({listed})", f"({shuffled})") == (values == moved)
    assert not equal(f"({listed})", listed) and not equal(listed, f"{listed}, 51")


@given(st.text(st.sampled_from(list(r"\{}[]()<>=,;:+-*/^_.% $&|!'~0123456789abixyfrctsqpmen")), max_size=25))
@settings(max_examples=300, deadline=None)
def test_whatever_is_written_is_read_or_refused(text):
    try:
        form = read_answer(text)
    except Unreadable:
        return
    assert isinstance(form, (Scalar, Words, Group, Named, Relation))


@pytest.mark.parametrize("depth", [39, 40])
def test_nesting_within_bounds_is_read(depth):
    assert equal("1", "(" * depth + "1" + ")" * depth)
    with pytest.raises(Unreadable, match="brackets"):
        read_answer("(" * 41 + "1" + ")" * 41)
