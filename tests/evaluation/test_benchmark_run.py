"""The evaluation command on benchmarks: the quickstart's policy, the real sandbox, killed and continued."""

import json
import pathlib
import random
import runpy
import signal
import subprocess
import sys
import time

import pytest
from data.test_livecodebench import row as program_row
from rich.console import Console

from taorl_jax.config import PRESETS, ConfigError, apply_presets
from taorl_jax.errors import UserError
from taorl_jax.evaluation import benchmark_run
from taorl_jax.evaluation.benchmark_run import evaluate_benchmarks
from taorl_jax.evaluation.benchmarks import load_benchmark
from taorl_jax.evaluation.policy import find_policy

ROOT = pathlib.Path(__file__).parents[2]
K = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Six problems that the policy can solve, one that is too long, and a programming problem."""
    folder = tmp_path_factory.mktemp("data")
    rng = random.Random(3)
    rows = []
    for _ in range(6):
        a, b, c = rng.randint(12, 99), rng.randint(12, 99), rng.randint(11, 99)
        text = f"{a} crates hold {b} jars each. {c} jars break. How many jars are left?"
        rows.append({"problem": text, "answer": str(a * b - c)})
    rows.append({"problem": f"What is {' + '.join(['1'] * 90)}?", "answer": "90"})
    (folder / "crates.jsonl").write_text("\n".join(map(json.dumps, rows)))
    program = program_row(question_content="3 crates hold 14 jars each.", public_test_cases="[]")
    (folder / "programs.jsonl").write_text(json.dumps(program))
    return folder


def settings(files):
    return {
        "policy.checkpoint": str(ROOT / "experiments/quickstart_policy"),
        "benchmarks.aime24": str(files / "crates.jsonl"),
        "benchmarks.livecodebench": str(files / "programs.jsonl"),
        "rollout.slots": 8,
        "eval.samples": K,
        "sandbox.wall_s": 10.0,
    }


def make_config(files, **overrides):
    config = runpy.run_path(str(ROOT / "experiments/quickstart.py"))["get_config"]()
    overrides = {name.replace("__", "."): value for name, value in overrides.items()}
    config.update_from_flattened_dict(settings(files) | overrides)
    return config


def evaluate(files, output, names=("aime24",), baseline=None, checkpoint=None, **overrides):
    config = make_config(files, **overrides)
    console = Console(quiet=True)
    return evaluate_benchmarks(
        config, checkpoint, list(names), output=str(output), baseline=baseline, console=console
    )


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory):
    """An evaluation without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, evaluate(files, folder)


def lines(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def test_tables_and_samples(whole):
    folder, report = whole
    (table,) = report.tables
    assert (table.problems, table.not_attempted, table.samples, table.unknown) == (7, 1, 6 * K, 0)
    assert table.metrics["coverage"].value == pytest.approx(6 / 7)
    rights = sum(line["outcome"] == "right" for line in lines(folder))
    assert table.metrics["avg_at_k"].value == pytest.approx(rights / (7 * K))  # too long is wrong
    assert 0 < rights < 6 * K
    assert json.loads((folder / "report.json").read_text())["tables"][0]["metrics"]["avg_at_k"][0] == (
        pytest.approx(rights / (7 * K))
    )
    markdown = (folder / "report.md").read_text()
    for label in ("Avg@K", "Pass@K", "Len@K, policy", "Len@K, paper", "code lines", "no answer", "too long"):
        assert label in markdown


def test_killed_in_the_middle_the_same_command_goes_on_to_the_same_table(files, whole, tmp_path):
    flags = [f"--config.{name}={value}" for name, value in settings(files).items() if name != "eval.samples"]
    command = [sys.executable, "-m", "taorl_jax.evaluate", "--config", "experiments/quickstart.py", *flags]
    command += ["--benchmarks", "aime24", "--k", str(K), "--output", str(tmp_path)]
    samples = tmp_path / "samples.jsonl"
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        deadline = time.monotonic() + 300
        while not samples.exists() or samples.read_bytes().count(b"\n") < 3:
            assert process.poll() is None and time.monotonic() < deadline, process.stdout.read()
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    killed = lines(tmp_path) if samples.read_bytes().endswith(b"\n") else None
    assert killed is None or len(killed) < 6 * K, "it was killed too late to show anything"
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    keys = [(line["problem"], line["sample"]) for line in lines(tmp_path)]
    assert len(keys) == len(set(keys)) == 6 * K
    assert (tmp_path / "report.json").read_text() == (whole[0] / "report.json").read_text()
    by_key = lambda folder: sorted(lines(folder), key=lambda line: (line["problem"], line["sample"]))
    assert by_key(tmp_path) == by_key(whole[0])
    assert "Avg@K" in again.stdout


def test_a_finished_evaluation_samples_nothing_and_a_larger_k_only_what_is_new(
    files, whole, tmp_path, monkeypatch
):
    (tmp_path / "samples.jsonl").write_bytes((whole[0] / "samples.jsonl").read_bytes())
    (tmp_path / "evaluation.json").write_bytes((whole[0] / "evaluation.json").read_bytes())
    wanted = []

    class Counting(benchmark_run.Scheduler):
        def run(self, params, prompts, samples, draw, *, done, **rest):
            wanted.append(len(prompts) * samples - len(done))
            return super().run(params, prompts, samples, draw, done=done, **rest)

    monkeypatch.setattr(benchmark_run, "Scheduler", Counting)
    assert evaluate(files, tmp_path).tables == whole[1].tables and wanted == []
    fewer = evaluate(files, tmp_path, eval__samples=2)
    assert fewer.tables[0].samples == 12 and wanted == []
    more = evaluate(files, tmp_path, eval__samples=K + 1)
    assert more.tables[0].samples == 6 * (K + 1) and wanted == [6]


def test_two_runs_are_compared_problem_by_problem_and_programs_in_one_turn(files, whole, tmp_path):
    report = evaluate(
        files,
        tmp_path,
        names=("aime24", "livecodebench"),
        baseline=str(whole[0]),
        eval__temperature=0.0,
        rollout__prompt_tokens=96,
        rollout__turn_tokens=48,
    )
    assert set(report.differences) == {"aime24"}  # the baseline has no programs
    paired = report.differences["aime24"]["avg_at_k"]
    assert paired.better + paired.worse + paired.equal == 7
    first, second = (r.tables[0].metrics["avg_at_k"].value for r in (whole[1], report))
    assert paired.value == pytest.approx(second - first)
    assert "paired by problem" in (tmp_path / "report.md").read_text()
    greedy = [line for line in lines(tmp_path) if line["benchmark"] == "aime24"]
    assert all(
        len({line["text"] for line in greedy if line["problem"] == problem}) == 1
        for problem in {line["problem"] for line in greedy}
    )
    programs = [line for line in lines(tmp_path) if line["benchmark"] == "livecodebench"]
    assert all(line["turns"] <= 1 and line["outcome"] == "wrong" for line in programs)


def test_samples_of_another_evaluation_are_not_mixed_in(files, whole):
    for changes, named in (
        ({"seed": 1}, "seed"),
        ({"eval__temperature": 0.5}, "eval.temperature"),
        ({"rollout__max_turns": 2}, "rollout.max_turns"),
    ):
        with pytest.raises(UserError, match=rf"holds samples of another evaluation \({named}"):
            evaluate(files, whole[0], **changes)


def test_a_changed_file_is_noticed(files, whole, tmp_path):
    changed = tmp_path / "changed.jsonl"
    changed.write_text('{"problem": "1+1?", "answer": "2"}\n')
    with pytest.raises(UserError, match="the file of aime24"):
        evaluate(files, whole[0], benchmarks__aime24=str(changed))


def test_what_is_not_there_is_named(files, tmp_path):
    config = make_config(files)
    with pytest.raises(UserError, match=r"--benchmarks aime23: there are aime24, .*olympiadbench500"):
        load_benchmark("aime23", config.benchmarks)
    with pytest.raises(UserError, match=r"benchmarks\.amc23: no such file"):
        load_benchmark("amc23", config.benchmarks)
    with pytest.raises(UserError, match="no Hugging Face folder"):
        find_policy(str(tmp_path), config)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="no finished checkpoint yet"):
        find_policy(str(tmp_path), config)
    with pytest.raises(UserError, match=r"--baseline .* holds no evaluation"):
        evaluate(files, tmp_path / "new", baseline=str(tmp_path))


def test_a_sample_of_a_benchmark_is_fixed_and_in_the_file_s_order(tmp_path):
    path = tmp_path / "many.jsonl"
    path.write_text("\n".join(f'{{"problem": "{i}?", "answer": "{i}"}}' for i in range(675)))
    config = make_config(tmp_path, benchmarks__olympiadbench=str(path))
    drawn = [problem.id for problem in load_benchmark("olympiadbench500", config.benchmarks).problems]
    assert len(set(drawn)) == 500 and drawn == sorted(drawn, key=int)
    assert drawn == [problem.id for problem in load_benchmark("olympiadbench500", config.benchmarks).problems]
    assert len(load_benchmark("olympiadbench", config.benchmarks).problems) == 675


def test_presets_are_the_paper_s_budgets(files):
    config = apply_presets(make_config(files), "paper,greedy")
    assert (config.rollout.turn_tokens, config.rollout.context_tokens, config.rollout.max_turns) == (
        12_000,
        36_000,
        10,
    )
    assert (config.eval.temperature, config.eval.samples) == (0.0, 1)
    assert make_config(files).rollout.max_turns != 10  # a copy
    for name in PRESETS:
        apply_presets(make_config(files), name)
    with pytest.raises(ConfigError, match="--preset papers: there are paper, training, greedy"):
        apply_presets(make_config(files), "papers")
