"""The benchmark for GPUs, at toy size on the CPU."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def test_dry_run(tmp_path):
    out = tmp_path / "benchmark.jsonl"
    environment = os.environ | {"PYTHON": sys.executable, "OUT": str(out)}
    subprocess.run(["bash", "tools/benchmark_gpu.sh", "--dry"], cwd=ROOT, env=environment, check=True)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["what"] for row in rows] == ["gpu_sample", "gpu_update"]
    for row in rows:
        assert row["tokens_per_s"] > 0
        assert row["mfu"] is None, "of a device whose peak is not known"
        assert {"bandwidth_share", "parameters", "device"} <= row.keys()
