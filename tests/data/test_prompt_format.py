"""What goes around a problem."""

import pytest

from taorl_jax.data.prompt_format import BUILT_IN, PromptFormat, read_template
from taorl_jax.errors import MissingFile, UserError
from taorl_jax.models.tokenizer import Tokenizer
from taorl_jax.tool_use.code_block import find_code
from taorl_jax.tool_use.observation import LABEL


@pytest.fixture(scope="module")
def tokenizer(tiny_policy):
    return Tokenizer.load(tiny_policy)


def test_plain_is_the_problem_alone(tokenizer):
    plain = PromptFormat(tokenizer, read_template("plain"))
    assert plain.prompt_ids("What is 2 + 3?") == tokenizer.prompt_ids("What is 2 + 3?")


def test_the_tool_prompt_tells_the_format_that_the_rollout_reads(tokenizer):
    """Its example is found as code by the automaton, and its label is the one of observations."""
    text = tokenizer.decode(PromptFormat(tokenizer, read_template("tool")).prompt_ids("What is {2} + 3?"))
    assert "User Question:\nWhat is {2} + 3?" in text
    assert LABEL.strip() in text
    assert "\\boxed{answer}" in text
    example = BUILT_IN["tool"].split("as here:\n\n")[1]
    assert find_code([example.encode()]).code == "boxes, pens = 12, 7\nfinal_answer(boxes * pens)"


def test_a_file_is_read_and_must_have_its_place_for_the_problem(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("Solve: {problem}\n")
    assert read_template(str(file)) == "Solve: {problem}\n"
    file.write_text("Solve!")
    with pytest.raises(UserError, match=r"data\.prompt: .* must hold \{problem\} once"):
        read_template(str(file))
    with pytest.raises(MissingFile, match=r"data\.prompt: no such file: nowhere\.txt.*tool, plain"):
        read_template("nowhere.txt")
