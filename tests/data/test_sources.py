import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taorl_jax.data.files import DataError
from taorl_jax.data.problem import Problem
from taorl_jax.data.rows import parse_row, strip_foreign_prompt
from taorl_jax.data.sources import FileProblems, LoadReport


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
    source = FileProblems(path)
    assert [source[i] for i in range(len(source))] == [
        Problem("a", "1+1?", "2", ""),
        Problem("3", "7*6?", "42", "easy"),  # line 3 of the file
    ]


@pytest.mark.parametrize("literal", ["0.10", "1e3", "123456789012345678901234567890", "-0"])
def test_a_numeric_answer_is_kept_as_written(tmp_path, literal):
    path = write(tmp_path, f'{{"problem": "x", "answer": {literal}}}')
    assert FileProblems(path)[0].answer == literal


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip))
@settings(deadline=None)
def test_any_text_survives(text):
    row = json.loads(json.dumps({"problem": text, "answer": text.replace("#", ""), "id": text}))
    try:
        problem = parse_row(row, 1)
    except ValueError as error:
        assert "is empty" in str(error)
        return
    assert problem == Problem(text, strip_foreign_prompt(text), text.replace("#", ""), "")


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
        FileProblems(path, setting="data.heldout")
    message = str(refusal.value)
    assert message.startswith("data.heldout: 1 malformed row")
    assert f"{path}:2: " in message and reason in message


def test_a_duplicate_id_names_the_first_use(tmp_path):
    path = write(tmp_path, *['{"problem": "x", "answer": "1", "id": 7}'] * 2)
    with pytest.raises(DataError, match=r"jsonl:2: id '7' was already used in row 1"):
        FileProblems(path)


def test_the_first_ten_faults_are_listed_together(tmp_path):
    with pytest.raises(DataError) as refusal:
        FileProblems(write(tmp_path, *["{"] * 12))
    lines = str(refusal.value).splitlines()
    assert "12 malformed row(s)" in lines[0]
    assert len(lines) == 1 + 10 + 1 and lines[-1] == "  and 2 more"


def test_empty_and_missing_files_name_the_setting(tmp_path):
    with pytest.raises(DataError, match=r"data\.train: no problems in"):
        FileProblems(write(tmp_path, ""))
    with pytest.raises(FileNotFoundError, match=r"data\.heldout: no such file: .*nowhere"):
        FileProblems(tmp_path / "nowhere", setting="data.heldout")


def test_a_gold_that_cannot_be_judged_is_refused_with_its_row(tmp_path):
    path = write(tmp_path, '{"problem": "a", "answer": "7"}', '{"problem": "b", "answer": "\\\\frac{1}{"}')
    with pytest.raises(DataError, match=r"jsonl:2: answer .*cannot be read"):
        FileProblems(path)


def test_a_share_of_the_rows_may_be_refused(tmp_path):
    path = write(tmp_path, *['{"problem": "x", "answer": "1"}'] * 3, "{")
    with pytest.raises(DataError, match=r"1 malformed row\(s\) of 4"):
        FileProblems(path, max_refused=0.2)
    source = FileProblems(path, max_refused=0.25)
    assert len(source) == 3 and source.report == LoadReport(rows=4, refused=1, duplicates=0)


def test_duplicates_are_dropped_and_a_second_answer_is_refused(tmp_path):
    row = '{"problem": "1 + 1 =  ?", "answer": "2"}'
    path = write(
        tmp_path, row, row, '{"problem": "1 + 1 = ?", "answer": "2"}', '{"problem": "2?", "answer": "2"}'
    )
    source = FileProblems(path, deduplicate=True)
    assert [problem.id for problem in source] == ["1", "4"]
    assert source.report == LoadReport(rows=4, refused=0, duplicates=2)
    with pytest.raises(DataError, match="the problem of row 1 with another answer"):
        FileProblems(write(tmp_path, row, row.replace('"2"', '"3"')), deduplicate=True)
