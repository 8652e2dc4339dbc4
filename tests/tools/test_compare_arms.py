"""Two arms, trained for two tiny steps, end up in a table and a picture; a second call trains nothing."""

import json
import os
import pathlib
import subprocess
import sys

from tools import compare_arms

ROOT = pathlib.Path(__file__).parents[2]
TINY = {
    "rollout.prompts": 2,
    "rollout.samples": 4,
    "rollout.slots": 8,
    "rollout.prefill_rows": 4,
    "train.steps": 2,
    "train.minibatches": 2,
    "filter.min_group": 2,
    "eval.every": 1,
    "eval.problems": 2,
    "eval.samples": 2,
    "checkpoint.every": 2,
    "sandbox.wall_s": 10.0,
    "policy.checkpoint": ROOT / "experiments/quickstart_policy",
}


def test_arms_are_trained_once_and_compared(tmp_path):
    command = [
        sys.executable,
        "-m",
        "tools.compare_arms",
        "--config",
        str(ROOT / "experiments/quickstart.py"),
    ]
    command += ["--out", str(tmp_path / "out"), "--runs", "taorl:0", "tir:3", "--"]
    command += [f"--config.{name}={value}" for name, value in TINY.items()]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = lambda: subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    first = run()
    assert first.returncode == 0, first.stdout + first.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [(r["arm"], r["seed"], sorted(r["heldout_by_step"])) for r in results] == [
        ("taorl", 0, ["0", "1", "2"]),
        ("tir", 3, ["0", "1", "2"]),
    ]
    assert (tmp_path / "out" / "arms.png").stat().st_size > 10_000
    before = (tmp_path / "runs" / "quickstart-tir-seed3" / "metrics.jsonl").read_bytes()
    assert run().returncode == 0
    assert (tmp_path / "runs" / "quickstart-tir-seed3" / "metrics.jsonl").read_bytes() == before


def test_table_by_hand():
    rows = [
        {"step": 0, "eval/avg_at_k": 0.5, "eval/pass_at_k": 0.75, "eval/k": 8},
        {"step": 1, "train/reward_mean": 0.4, "rollout/valid_code_ratio": 0.5, "train/grad_norm": 1.0},
        {
            "step": 2,
            "train/reward_mean": 0.6,
            "rollout/valid_code_ratio": 0.5,
            "train/grad_norm": 2.718281828459045,
            "eval/avg_at_k": 0.875,
            "eval/pass_at_k": 1.0,
            "eval/k": 8,
            "timing/rollout_seconds": 90.0,
        },
    ]
    result = compare_arms.summary("tir", "1", rows)
    assert result["grad_norm_log_std"] == 0.5, "of log 1 and log e"
    assert result["minutes"] == 1.5
    assert (
        compare_arms.markdown([result]).splitlines()[2] == "| tir | 1 | 50.0% | 87.5% | 100.0% | 0.5 | 1.5 |"
    )
