"""Programs are compiled for a TPU topology, and judged, without a TPU."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = """
from experiments.quickstart import get_config as quickstart


def get_config(argument=""):
    config = quickstart().unlock()
    config.policy.checkpoint = {policy!r}
    config.policy.compute_dtype = config.policy.cache_dtype = "bfloat16"
    config.rollout.prefill_rows, config.rollout.prompt_tokens, config.train.row_tokens = 8, 64, 256
    config.mesh.fsdp, config.mesh.tensor, config.train.micro_rows = 2, 2, 8
    return config.lock()
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="libtpu is pinned for the jax of Python 3.11")
def test_a_small_config_compiles_for_four_chips(tmp_path, tiny_policy):
    path = tmp_path / "small.py"
    path.write_text(CONFIG.replace("{policy!r}", repr(str(tiny_policy))))
    command = [sys.executable, "tools/compile_for_tpu.py", "--config", str(path), "--topology", "v5e:2x2"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = {line.split(":")[0]: line for line in done.stdout.splitlines() if " GiB a chip, " in line}
    assert lines.keys() >= {"score", "update", "rollout_params", "prefill", "decode[192]", "extend[192]"}
    assert all("fits" in line for line in lines.values())
    assert "everything fits" in done.stdout
    assert "collectives a chip: all-" in done.stdout
    assert "MFU at most" in done.stdout


def test_what_cannot_be_compiled_for_is_said(tmp_path):
    command = [sys.executable, "tools/compile_for_tpu.py", "--config", "experiments/quickstart.py"]
    done = subprocess.run([*command, "--topology", "h100:8"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        done.stderr.strip() == "error: --topology h100:8: write one of v5e, v5p, v6e, a colon and its extent"
    )
