"""The evaluation command on the initial policy and on a run, with the real sandbox."""

import math
import pathlib

import pytest
from rich.console import Console

from taorl_jax.errors import UserError
from taorl_jax.evaluation.run import evaluate_run
from taorl_jax.training.loop import train
from taorl_jax.training.metrics import read_metrics

ROOT = pathlib.Path(__file__).parents[2]


def tiny(**overrides):
    import runpy

    config = runpy.run_path(str(ROOT / "experiments/quickstart.py"))["get_config"]()
    settings = {
        "policy.checkpoint": str(ROOT / "experiments/quickstart_policy"),
        "rollout.prompts": 2,
        "rollout.samples": 4,
        "rollout.slots": 8,
        "rollout.prefill_rows": 4,
        "train.steps": 1,
        "train.minibatches": 2,
        "eval.problems": 3,
        "eval.samples": 2,
        "sandbox.wall_s": 10.0,
    }
    config.update_from_flattened_dict(settings | overrides)
    return config


def test_a_run_is_evaluated_as_it_was_in_training(tmp_path):
    console = Console(file=(tmp_path / "console").open("w"), width=100)
    train(tiny(), str(tmp_path / "run"), console)
    row = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    metrics = evaluate_run(tiny(), str(tmp_path / "run"), console)
    for name, value in metrics.items():
        assert name.startswith("timing/") or row[name] == value, name
    initial = evaluate_run(tiny(), None, console)
    assert initial["eval/avg_at_k"] == read_metrics(tmp_path / "run" / "metrics.jsonl")[0]["eval/avg_at_k"]
    assert "eval/avg_at_k" in (tmp_path / "console").read_text()


def test_problems_that_are_too_long_count_as_wrong(tmp_path):
    """Three problems, one of them too long: never attempted, so at most two of three can be right."""
    data = tmp_path / "data.jsonl"
    long = "What is " + " + ".join(["1"] * 80) + "?"
    data.write_text(
        '{"problem": "What is 12 + 30?", "answer": "42"}\n'
        f'{{"problem": "{long}", "answer": "80"}}\n'
        '{"problem": "What is 11 + 30?", "answer": "41"}\n'
    )
    metrics = evaluate_run(tiny(**{"data.heldout": str(data)}), None, Console(quiet=True))
    assert metrics["eval/problems"] == 3
    assert metrics["eval/not_attempted"] == 1
    assert metrics["eval/avg_at_k"] <= 2 / 3
    assert not math.isnan(metrics["eval/avg_at_k"])


def test_a_workdir_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no checkpoints"):
        evaluate_run(tiny(), str(tmp_path), Console(quiet=True))
