"""Fetching (from a hub that is a folder), converting and checking data files."""

import json
import pathlib

import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest
from data.test_livecodebench import row as program_row
from data.test_rows import DAPO, verl

from taorl_jax.data.sources import FileProblems
from tools import prepare_data


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Puts files where the downloader finds them."""
    folder = tmp_path / "hub"

    def put(repository, file, rows):
        path = folder / repository / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.endswith("parquet"):
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        else:
            path.write_text("\n".join(map(json.dumps, rows)))

    def names(repository, repo_type):
        return [
            str(p.relative_to(folder / repository)) for p in (folder / repository).rglob("*") if p.is_file()
        ]

    monkeypatch.setattr(huggingface_hub, "list_repo_files", names)
    monkeypatch.setattr(
        huggingface_hub,
        "hf_hub_download",
        lambda repository, file, repo_type: str(folder / repository / file),
    )
    return put


def run(*arguments):
    prepare_data.main([str(argument) for argument in arguments])


def test_fetched_sets_stand_where_the_config_looks_and_load(hub, tmp_path):
    hub(
        "math-ai/aime24",
        "test-00000-of-00001.parquet",
        [{"problem": "2+2?", "solution": r"\boxed{4}", "id": 60}],
    )
    hub("math-ai/aime24", "README.md", [])
    hub("BytedTsinghua-SIA/DAPO-Math-17k", "data/dapo.parquet", [verl(DAPO, "12")] * 100)
    hub("livecodebench/code_generation_lite", "test6.jsonl", [program_row()])
    run("fetch", "aime24", "dapo_math_17k", "livecodebench", "--to", tmp_path / "data")
    (problem,) = FileProblems(tmp_path / "data" / "aime24.jsonl")
    assert (problem.id, problem.text, problem.answer) == ("60", "2+2?", "4")
    (problem,) = FileProblems(tmp_path / "data" / "dapo_math_17k.jsonl")  # a hundred rows of one problem
    assert (problem.text, problem.answer) == ("How many legs have 3 cats?", "12")
    (problem,) = FileProblems(tmp_path / "data" / "livecodebench.jsonl")
    assert len(problem.tests) == 2


def test_what_cannot_be_fetched_is_a_message(hub, tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="nothing: no such set; there are aime24"):
        run("fetch", "nothing")
    hub("math-ai/aime24", "README.md", [])
    with pytest.raises(SystemExit, match=r"has no file test\* any more"):
        run("fetch", "aime24", "--to", tmp_path)

    def offline(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "list_repo_files", offline)
    with pytest.raises(SystemExit, match=r"cannot be fetched \(ConnectionError\).*benchmarks\.aime24"):
        run("fetch", "aime24", "--to", tmp_path)


def test_convert_and_check(tmp_path, capsys):
    rows = [
        {"problem": "2+2?", "answer": "4"},
        {"problem": "2+2?", "answer": "4"},
        {"problem": "x", "answer": ""},
    ]
    source = tmp_path / "rows.json"
    source.write_text(json.dumps(rows))
    with pytest.raises(SystemExit, match="1 malformed row"):
        run("convert", source, tmp_path / "out.jsonl")
    run("--deduplicate", "convert", "--max-refused", "0.5", source, tmp_path / "out.jsonl")
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {"id": "1", "problem": "2+2?", "answer": "4"}
    (tmp_path / "bad.jsonl").write_text("{")
    found = dict(prepare_data.check([str(source), str(tmp_path / "bad.jsonl")], deduplicate=True))
    assert found[str(source)] == "3 rows, 1 golds, each equal to itself, 1 refused, 1 duplicates"
    assert "no problems in" in found[str(tmp_path / "bad.jsonl")]


def test_the_config_names_a_file_for_every_benchmark_of_the_hub():
    from taorl_jax.config import base_config

    benchmarks = base_config().benchmarks
    assert set(prepare_data.HUB) - set(benchmarks) == {"dapo_math_17k"}
    assert all(pathlib.Path(path).name == f"{name}.jsonl" for name, path in benchmarks.items())
