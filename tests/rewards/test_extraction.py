"""What counts as the boxed answer of a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taorl_jax.rewards.extraction import last_boxed, paper_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{137}.", "137"),
        (r"\boxed{1} no, \boxed{2}", "2"),  # two boxes are not glued together
        (r"\boxed{840}\boxed{840}", "840"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed { 5 }", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),  # an escaped brace needs no partner
        (r"\boxed{\boxed{5}}", "5"),
        ("\\boxed{1 +\n 2}", "1 +\n 2"),
        (r"\boxed 5", "5"),
        (r"$\boxed 57$ is it", "57"),
        (r"It is \boxed 57.", "57"),
        (r"\boxed\frac{1}{2}", r"\frac{1}{2}"),
        ("x" * 100_000 + r"\boxed{7}" + "y" * 100_000, "7"),  # no window over the text
    ],
)
def test_answers(text, answer):
    assert last_boxed(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "", "137", r"\boxed", r"\boxed ", r"\boxed{}", r"\boxed{ }", r"\boxed{1", r"\boxed{\frac{1}{2}",
        r"\boxed{1\}", r"\boxed{7} then \boxed{}", r"\boxed{7} then \boxed{8", r"\boxedness{3}", "boxed{3}",
        r"$\boxed$",
    ],
)  # fmt: skip
def test_no_answer(text):
    assert last_boxed(text) is None


BALANCED = st.recursive(
    st.text("ab1+\\ ", max_size=4).map(lambda text: text.replace("\\", r"\pi ")),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: "{" + "".join(parts) + "}"),
)


@given(before=st.text(), content=BALANCED, after=st.text().filter(lambda text: "\\boxed" not in text))
def test_a_balanced_box_is_read_whole(before, content, after):
    assert last_boxed(f"{before} \\boxed{{{content}}}{after}") == (content.strip() or None)


@given(st.text("\\{}boxed 5$"))
def test_never_an_empty_answer_and_never_a_crash(text):
    assert last_boxed(text) != ""


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("The final answer is $x+1$. I hope it is correct. \\boxed{3}", "x+1"),
        (r"first \boxed{2}, then \boxed{3}; 4", "3"),
        (r"\boxed{} 5", None),
        ("So the answer is 12.\nIndeed.", "12"),
        ("The answer is: $7$", "7"),
        ("We get 3 and then 1,234 of them", "1234"),
        ("\nCode execution result: 42\n", "42"),  # nobody said that it is the answer
        ("5<|im_end|> 6", "5"),
        ("nothing", None),
    ],
)
def test_the_fallbacks_of_the_released_code(response, answer):
    assert paper_answer(response) == answer
