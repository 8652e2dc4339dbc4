r"""One self-written row of every shape that circulates, through the file format in which it does."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from taorl_jax.data.files import DataError
from taorl_jax.data.rows import parse_row, strip_foreign_prompt
from taorl_jax.data.sources import FileProblems

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    'How many legs have 3 cats?\n\nRemember to put your answer on its own line after "Answer:".'
)


def verl(text, answer, **more):
    return {
        "data_source": "own",
        "prompt": [{"role": "user", "content": text}],
        "reward_model": {"ground_truth": answer, "style": "rule"},
        **more,
    }


SHAPES = {
    "problem and answer": ({"problem": "2+2?", "answer": "4"}, "2+2?", "4"),
    "the same text twice": ({"problem": "2+2?", "question": "2+2?", "answer": "4"}, "2+2?", "4"),
    "solution with a box": (
        {"problem": "Half of 3?", "solution": r"It is \boxed{\frac{3}{2}}$.", "level": "2"},
        "Half of 3?",
        r"\frac{3}{2}",
    ),
    "gsm8k": ({"question": "2+3?", "answer": "2 + 3 = <<2+3=5>>5.\n#### 5"}, "2+3?", "5"),
    "olympiadbench": (
        {
            "question": "Solve.",
            "context": "Let x be real.",
            "final_answer": ["$2,5$"],
            "is_multiple_answer": True,
            "unit": None,
        },
        "Let x be real.\nSolve.",
        "2, 5",
    ),
    "olympiadbench with a unit": (
        {"question": "How long?", "context": None, "final_answer": ["$\\frac{9}{2}$"], "unit": "$cm^2$"},
        "How long?",
        r"\frac{9}{2} \text{ cm^2}",
    ),
    "olympiadbench in percent": (
        {"question": "Share?", "final_answer": ["4.2"], "unit": "%"},
        "Share?",
        r"4.2\%",
    ),
    "verl": (verl("2+2?", "4"), "2+2?", "4"),
    "verl with a foreign prompt": (verl(DAPO, "12"), "How many legs have 3 cats?", "12"),
}


@pytest.mark.parametrize(("row", "text", "answer"), SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
def test_every_shape_in_every_format(tmp_path, suffix, row, text, answer):
    path = tmp_path / f"problems.{suffix}"
    if suffix == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    else:
        path.write_text(json.dumps([row] if suffix == "json" else row))
    (problem,) = FileProblems(path)
    assert (problem.text, problem.answer, problem.id) == (text, answer, "1")


def test_numbers_in_parquet_become_text(tmp_path):
    path = tmp_path / "numbers.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"problem": ["a", "b"], "answer": [27.0, 2.5], "id": [7, 8]}), path
    )
    assert [(problem.answer, problem.id) for problem in FileProblems(path)] == [("27.0", "7"), ("2.5", "8")]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "2+2?", "reward_model": {"ground_truth": "4"}}, "must be a list of messages"),
        (
            {"prompt": [{"role": "system", "content": "x"}], "reward_model": {"ground_truth": "4"}},
            "0 messages",
        ),
        (verl("2+2?", ""), "field `ground_truth` is empty"),
        (verl("2+2?", "4") | {"reward_model": {}}, "field `ground_truth` is missing"),
        ({"question": "x", "final_answer": []}, "list of answers"),
        ({"problem": "x", "solution": "four"}, r"no \\boxed answer"),
    ],
)
def test_what_is_missing_is_named(row, reason):
    with pytest.raises(ValueError, match=reason):
        parse_row(row, 1)


@pytest.mark.parametrize(
    "instruction",
    [
        r" Please reason step by step, and put your final answer within \boxed{}.",
        r" Let's think step by step and output the final answer within \boxed{}.",
        ' Let\'s think step by step and output the final answer after "####".',
        r" Put your final answer in \boxed{}.",
    ],
)
def test_instructions_for_other_prompts_are_cut_off(instruction):
    assert strip_foreign_prompt("How many?" + instruction) == "How many?"


def test_a_problem_that_merely_mentions_steps_stays_whole():
    text = "A robot must reason step by step. Put 3 balls in a box; how many ways?"
    assert strip_foreign_prompt(text) == text


def test_other_files_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("problem,answer\n1,2\n")
    with pytest.raises(DataError, match=r"\.jsonl, \.json, \.parquet"):
        FileProblems(tmp_path / "a.csv")
    (tmp_path / "a.parquet").write_text("no parquet")
    with pytest.raises(DataError, match="no readable parquet file"):
        FileProblems(tmp_path / "a.parquet")
    (tmp_path / "a.json").write_text('{"problem": 1}')
    with pytest.raises(DataError, match="not a JSON list"):
        FileProblems(tmp_path / "a.json")
