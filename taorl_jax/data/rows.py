"""From rows, in the shapes in which data sets circulate, to problems."""

import json
import re

from taorl_jax.data import livecodebench
from taorl_jax.data.problem import Problem
from taorl_jax.rewards.extraction import last_boxed

IDS = ("id", "unique_id", "question_id", "idx")
TIERS = ("tier", "level", "difficulty")
# Instructions that data sets carry for other models' prompts, at the start or the end of the problem.
_FOREIGN = [
    re.compile(pattern, re.DOTALL | re.IGNORECASE)
    for pattern in (
        r"\A\s*Solve the following math problem step by step\..{0,300}?answer to the problem\.\s*",
        r"\s*Remember to put your answer on its own line after [\"']?Answer:?[\"']?\.?[\"']?\s*\Z",
        r"\s*(?:Please |Let'?s )?(?:reason|think) step by step[^\n]{0,80}\\boxed\s*\{\s*\}[^\n]{0,3}\Z",
        r"\s*(?:Please )?(?:put|present|write|give|output) (?:your|the) final answer (?:with)?in(?:side)? "
        r"\\boxed\s*\{\s*\}[^\n]{0,3}\Z",
        r"\s*Let'?s think step by step and output the final answer after \"####\"\.?\s*\Z",
    )
]


def parse_row(row: dict, number: int) -> Problem:
    """The problem in row `number`; ValueError says what is wrong with it.

    Text: `problem` or `question` (with `context` before it), the user's message of verl's `prompt`, or
    LiveCodeBench's `question_content`. Answer: `answer` (GSM8K's is what follows `####`), the list
    `final_answer` with its `unit`, verl's `reward_model.ground_truth`, or else the last box of `solution`. Id
    and tier are optional (default: the number; empty). Instructions for other prompts are cut off. Other
    fields are ignored.
    """
    name = next((name for name in IDS if name in row), None)
    identity = _field(row, name) if name else str(number)
    tier = next((_field(row, name) for name in TIERS if name in row), "")
    if "question_content" in row:
        _field(row, "question_content")
        return Problem(identity, livecodebench.problem_text(row), "", tier, livecodebench.read_tests(row))
    return Problem(identity, strip_foreign_prompt(_text(row)), _answer(row), tier)


def strip_foreign_prompt(text: str) -> str:
    """A problem without the instructions that other projects put around it."""
    for pattern in _FOREIGN:
        text = pattern.sub("", text)
    return text.strip()


def _text(row):
    if "prompt" in row:
        return _user_message(row["prompt"])
    if "problem" in row and "question" in row and row["problem"] != row["question"]:
        raise ValueError("needs exactly one of the fields `problem` and `question`, or two that are the same")
    if "problem" not in row and "question" not in row:
        raise ValueError("needs exactly one of the fields `problem` and `question`, or verl's `prompt`")
    text = _field(row, "problem" if "problem" in row else "question")
    return f"{_field(row, 'context')}\n{text}" if row.get("context") else text


def _user_message(messages):
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError("field `prompt` must be a list of messages")
    contents = [message.get("content") for message in messages if message.get("role") == "user"]
    if len(contents) != 1:
        raise ValueError(f"field `prompt` has {len(contents)} messages of the user, not one")
    return _field({"prompt": contents[0]}, "prompt")


def _answer(row):
    if "reward_model" in row:
        if not isinstance(row["reward_model"], dict):
            raise ValueError("field `reward_model` must be an object")
        return _field(row["reward_model"], "ground_truth")
    if "answer" in row:
        answer = _field(row, "answer")
        return answer.rpartition("####")[2].strip() if "####" in answer else answer
    if "final_answer" in row:
        return _final_answer(row)
    if "solution" in row:
        boxed = last_boxed(_field(row, "solution"))
        if boxed is None:
            raise ValueError(r"field `answer` is missing, and `solution` holds no \boxed answer")
        return boxed
    raise ValueError("field `answer` is missing")


def _final_answer(row):
    """OlympiadBench's list; a comma between answers gets a blank, so that 2,500 is two numbers there."""
    answers = row["final_answer"]
    if not isinstance(answers, list) or not answers:
        raise ValueError("field `final_answer` must be a list of answers")
    joined = ", ".join(_field({"final_answer": answer}, "final_answer") for answer in answers)
    if row.get("is_multiple_answer") is True:
        joined = re.sub(r",(?=\S)", ", ", joined.replace("$", ""))
    unit = (row.get("unit") or "").strip("$ ")
    if not unit:
        return joined
    return joined.strip("$") + (r"\%" if unit == "%" else rf" \text{{ {unit}}}")


def _field(row: dict, name: str) -> str:
    if name not in row:
        raise ValueError(f"field `{name}` is missing")
    value = row[name]
    if not isinstance(value, str):
        raise ValueError(f"field `{name}` must be text or a number, not {json.dumps(value)[:40]}")
    if not value.strip():
        raise ValueError(f"field `{name}` is empty")
    value.encode("utf-8")  # a lone surrogate passes JSON and would fail in the tokenizer, much later
    return value
