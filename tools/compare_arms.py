"""Trains arms of a config one after the other, and puts their results into a table and a picture.

    python -m tools.compare_arms --config experiments/quickstart.py --out experiments/results/quickstart \
        --runs taorl:0 taorl:1 taorl:2 tir:0 simpletir:0

A run is ARM:SEED, kept in `runs/<config's name>-<arm>-seed<seed>`; what is finished is not trained again,
so the command can be interrupted and repeated.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import numpy as np

from taorl_jax.config import ARMS
from taorl_jax.reporting.curves import plot_arms
from taorl_jax.training.metrics import read_metrics

DEFAULT_RUNS = ["taorl:0", "taorl:1", "taorl:2", *(f"{arm}:0" for arm in ARMS if arm != "taorl")]


def train(config: str, arm: str, seed: str, overrides: list[str]) -> list[dict]:
    """Trains one arm, or goes on where it stopped; returns its metrics."""
    workdir = pathlib.Path("runs") / f"{pathlib.Path(config).stem}-{arm}-seed{seed}"
    command = [sys.executable, "-m", "taorl_jax.train", "--config", f"{config}:arm={arm}"]
    command += ["--workdir", str(workdir), f"--config.seed={seed}", *overrides]
    subprocess.run(command, check=True)
    return read_metrics(workdir / "metrics.jsonl")


def summary(arm: str, seed: str, rows: list[dict]) -> dict:
    """What the table shows of one run."""
    evaluated = [row for row in rows if "eval/avg_at_k" in row]
    trained = [row for row in rows if "train/reward_mean" in row]
    norms = [row["train/grad_norm"] for row in trained if "train/grad_norm" in row]
    return {
        "arm": arm,
        "seed": int(seed),
        "heldout_by_step": {row["step"]: round(row["eval/avg_at_k"], 4) for row in evaluated},
        "pass_at_k_final": round(evaluated[-1]["eval/pass_at_k"], 4),
        "k": evaluated[-1]["eval/k"],
        "reward_final": round(trained[-1]["train/reward_mean"], 4),
        "valid_code_ratio_final": round(trained[-1]["rollout/valid_code_ratio"], 4),
        "grad_norm_log_std": round(float(np.std(np.log(norms))), 3),
        "minutes": round(sum(v for row in rows for k, v in row.items() if k.endswith("_seconds")) / 60, 1),
    }


def markdown(results: list[dict]) -> str:
    """The table for people."""
    steps = sorted({int(step) for result in results for step in result["heldout_by_step"]})
    heads = [f"step {step}" for step in steps]
    columns = ["arm", "seed", *heads, "Pass@K", "std of log gradient norm", "minutes"]
    lines = ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]
    for result in results:
        shares = {int(step): share for step, share in result["heldout_by_step"].items()}
        cells = [result["arm"], result["seed"], *(f"{shares[step]:.1%}" for step in steps)]
        cells += [f"{result['pass_at_k_final']:.1%}", result["grad_norm_log_std"], result["minutes"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def main():
    """Command line; flags after `--` go to every training run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="experiments/quickstart.py")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("experiments/results/quickstart"))
    parser.add_argument("--runs", nargs="+", default=DEFAULT_RUNS, metavar="ARM:SEED")
    parser.add_argument("overrides", nargs="*", help="--config.a.b=value flags, after --")
    arguments = parser.parse_args()
    rows = {run: train(arguments.config, *run.split(":"), arguments.overrides) for run in arguments.runs}
    results = [summary(*run.split(":"), rows[run]) for run in arguments.runs]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    (arguments.out / "table.md").write_text(markdown(results))
    first = {run.split(":")[0]: rows[run] for run in reversed(arguments.runs)}
    plot_arms({arm: first[arm] for arm in sorted(first, key=list(ARMS).index)}, arguments.out / "arms.png")
    print(markdown(results))


if __name__ == "__main__":
    main()
