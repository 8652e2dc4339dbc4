import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taorl_jax.data.problem import Problem
from taorl_jax.data.sources import DataError, JsonlProblems, parse_row


def write(tmp_path, *lines):
    path = tmp_path / "problems.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return path


def test_rows_keep_their_order_and_default_ids(tmp_path):
    path = write(
        tmp_path,
        '{"problem": "1+1?", "answer": "2", "id": "a", "source": "ignored"}',
        "",
        '{"question": "7*6?", "answer": 42, "tier": "easy"}',
    )
    source = JsonlProblems(path)
    assert [source[i] for i in range(len(source))] == [
        Problem("a", "1+1?", "2", ""),
        Problem("3", "7*6?", "42", "easy"),  # line 3 of the file
    ]


@pytest.mark.parametrize("literal", ["0.10", "1e3", "123456789012345678901234567890", "-0"])
def test_a_numeric_answer_is_kept_as_written(literal):
    assert parse_row(f'{{"problem": "x", "answer": {literal}}}'.encode(), 1).answer == literal


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip), st.booleans())
@settings(deadline=None)
def test_any_text_survives(text, escaped):
    row = json.dumps({"problem": text, "answer": text, "id": text}, ensure_ascii=escaped).encode()
    assert parse_row(row, 1) == Problem(text, text, text, "")


BAD_ROWS = {
    '{"problem": "x", "answer": "1"': "delimiter",
    '["x", "1"]': "not a JSON object",
    '{"answer": "1"}': "exactly one of the fields `problem` and `question`",
    '{"problem": "x", "question": "y", "answer": "1"}': "exactly one of",
    '{"problem": "x"}': "field `answer` is missing",
    '{"problem": "x", "answer": " "}': "field `answer` is empty",
    '{"problem": "", "answer": "1"}': "field `problem` is empty",
    '{"problem": "x", "answer": ["1"]}': 'field `answer` must be text or a number, not ["1"]',
    '{"problem": "x", "answer": null}': "not null",
    '{"problem": "x", "answer": true}': "not true",
    '{"problem": "x", "answer": NaN}': "NaN is not a JSON number",
    '{"problem": "x", "answer": "1", "id": {}}': "field `id` must be",
    '{"problem": "\\ud800", "answer": "1"}': "surrogates not allowed",
    b'{"problem": "\xff", "answer": "1"}': "invalid start byte",
}


@pytest.mark.parametrize(("row", "reason"), BAD_ROWS.items())
def test_a_malformed_row_is_refused_with_file_line_and_reason(tmp_path, row, reason):
    path = write(tmp_path, '{"problem": "fine", "answer": "1"}', row)
    with pytest.raises(DataError) as refusal:
        JsonlProblems(path, setting="data.heldout")
    message = str(refusal.value)
    assert message.startswith("data.heldout: 1 malformed row")
    assert f"{path}:2: " in message and reason in message


def test_a_duplicate_id_names_the_first_use(tmp_path):
    path = write(tmp_path, *['{"problem": "x", "answer": "1", "id": 7}'] * 2)
    with pytest.raises(DataError, match=r"jsonl:2: id '7' was already used in line 1"):
        JsonlProblems(path)


def test_the_first_ten_faults_are_listed_together(tmp_path):
    with pytest.raises(DataError) as refusal:
        JsonlProblems(write(tmp_path, *["{"] * 12))
    lines = str(refusal.value).splitlines()
    assert "12 malformed row(s)" in lines[0]
    assert len(lines) == 1 + 10 + 1 and lines[-1] == "  and 2 more"


def test_empty_and_missing_files_name_the_setting(tmp_path):
    with pytest.raises(DataError, match=r"data\.train: no problems in"):
        JsonlProblems(write(tmp_path, ""))
    with pytest.raises(FileNotFoundError, match=r"data\.heldout: no such file: .*nowhere"):
        JsonlProblems(tmp_path / "nowhere", setting="data.heldout")
