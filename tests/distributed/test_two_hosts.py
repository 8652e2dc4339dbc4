"""The training command as two processes, as on two hosts: the numbers of one process, stops and resumes."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from experiments.quickstart import get_config
from taorl_jax.distributed.mesh import make_mesh
from taorl_jax.models.model_config import read_model_config
from taorl_jax.training.checkpoints import Checkpoints
from taorl_jax.training.learner import Learner
from taorl_jax.training.metrics import read_metrics

ROOT = pathlib.Path(__file__).parents[2]
SETTINGS = {
    "rollout.prompts": 4,
    "rollout.samples": 4,
    "rollout.slots": 8,
    "rollout.prefill_rows": 2,
    "rollout.extend_rows": 4,
    "train.steps": 3,
    "train.minibatches": 2,
    "train.micro_rows": 2,
    "filter.min_group": 2,
    "eval.every": 1,
    "eval.problems": 3,
    "eval.samples": 2,
    "checkpoint.every": 1,
    "sandbox.patience_s": 60.0,
    "sandbox.wall_s": 10.0,
    "mesh.fsdp": 2,
}


def start(workdir, devices, *flags):
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    settings = [f"--config.{name}={value}" for name, value in SETTINGS.items()]
    command = [sys.executable, "-m", "taorl_jax.train", "--config", "experiments/quickstart.py"]
    return subprocess.Popen(
        [*command, "--workdir", str(workdir), *settings, *flags],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def start_two(workdir, *flags):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    joined = f"--coordinator={address}", "--processes=2"
    return [start(workdir, 1, *joined, f"--process={i}", *flags) for i in range(2)]


def finish(processes):
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    return [process.returncode for process in processes], outputs


def params(workdir, step):
    """The parameters of a checkpoint, all in one, read on a single device."""
    config = get_config()
    learner = Learner(read_model_config(ROOT / config.policy.checkpoint), make_mesh(1, 1, 1), config)
    with contextlib.closing(Checkpoints(workdir / "checkpoints", keep=None)) as checkpoints:
        state, _ = checkpoints.restore(step, learner.abstract_state())
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.params)])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Work directory of one process with two devices, uninterrupted."""
    workdir = tmp_path_factory.mktemp("runs") / "alone"
    codes, outputs = finish([start(workdir, 2)])
    assert codes == [0], outputs
    return workdir


def test_two_processes_give_the_run_of_one_through_a_stop_on_either_and_a_resume(alone, tmp_path):
    workdir = tmp_path / "two"
    processes = start_two(workdir)
    deadline = time.monotonic() + 300
    while not (workdir / "checkpoints" / "1").is_dir():
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes), finish(processes)
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGTERM)
    codes, outputs = finish(processes)
    assert codes == [0, 0], outputs
    assert "host 1: SIGTERM: stopped after step" in outputs[0]
    assert "stopped" not in outputs[1], "only the first host speaks"
    codes, outputs = finish(start_two(workdir))
    assert codes == [0, 0], outputs

    rows, expected = read_metrics(workdir / "metrics.jsonl"), read_metrics(alone / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert sum(row.get("train/updates", 0) for row in rows) > 0, "nothing was learned from"
    for row, wanted in zip(rows, expected, strict=True):
        assert row.keys() == wanted.keys()
        for name, value in wanted.items():
            if not name.startswith("timing/"):
                # Sums over devices are made in another order.
                np.testing.assert_allclose(row[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    one_step = np.abs(params(alone, 3) - params(alone, 2)).max()
    np.testing.assert_allclose(params(workdir, 3), params(alone, 3), rtol=0, atol=0.05 * one_step)


def test_an_error_on_one_host_ends_both(tmp_path):
    """No sandbox answers where only the second process is told to look for one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}"
        address = f"127.0.0.1:{free.getsockname()[1]}"
    joined = f"--coordinator={address}", "--processes=2"
    first = start(tmp_path / "run", 1, *joined, "--process=0")
    second = start(
        tmp_path / "run",
        1,
        *joined,
        "--process=1",
        f"--config.sandbox.urls=('{nowhere}/x',)",
        "--config.sandbox.patience_s=1.0",
    )
    codes, outputs = finish([first, second])
    assert codes == [1, 1], outputs
    assert "error: host 1:" in outputs[0]
