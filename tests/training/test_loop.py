"""The training command on the real checkpoint, with the real sandbox: whole, interrupted, and resumed.

All runs are the quickstart shrunk to a few groups; what is compared are the numbers of two runs that must be
the same, bit for bit, apart from `timing/`.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from sandbox_service.zygote import process_tree
from taorl_jax.tool_use.local_sandbox import LocalSandbox
from taorl_jax.training.metrics import read_metrics
from taorl_jax.training.trajectory_log import read_trajectories

ROOT = pathlib.Path(__file__).parents[2]
SHRINK = {
    "rollout.prompts": 4,
    "rollout.samples": 4,
    "rollout.slots": 16,
    "rollout.prefill_rows": 4,
    "train.steps": 4,
    "train.minibatches": 2,
    "filter.min_group": 2,
    "eval.every": 2,
    "eval.problems": 4,
    "eval.samples": 2,
    "checkpoint.every": 1,
    "log.trajectories_every": 2,
    "log.replay_every": 2,
    "sandbox.patience_s": 60.0,
    "sandbox.wall_s": 10.0,
}


def command(workdir, config="experiments/quickstart.py", **overrides):
    settings = SHRINK | {name.replace("__", "."): value for name, value in overrides.items()}
    flags = [f"--config.{name}={value}" for name, value in settings.items()]
    return [sys.executable, "-m", "taorl_jax.train", "--config", config, "--workdir", str(workdir), *flags]


def start(workdir, **overrides):
    return subprocess.Popen(
        command(workdir, **overrides), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process):
    output, _ = process.communicate(timeout=600)
    return process.returncode, output


def numbers(workdir):
    return [
        {name: value for name, value in row.items() if not name.startswith("timing/")}
        for row in read_metrics(workdir / "metrics.jsonl")
    ]


def wait_for_step(process, workdir, step):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        rows = read_metrics(workdir / "metrics.jsonl") if (workdir / "metrics.jsonl").exists() else []
        if rows and rows[-1]["step"] >= step:
            return
        assert process.poll() is None, finish(process)[1]
        time.sleep(0.02)
    raise AssertionError("the run did not get there")


def final_params(workdir):
    """Arrays of the last checkpoint, read without the code under test."""
    import orbax.checkpoint as ocp

    step = max(int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit())
    restored = ocp.StandardCheckpointer().restore((workdir / "checkpoints" / str(step) / "state").absolute())
    return step, {str(k): np.asarray(v) for k, v in _leaves(restored)}


def _leaves(tree):
    import jax

    return jax.tree.leaves_with_path(tree)


def assert_same_run(one, other):
    assert numbers(one) == numbers(other)
    (step, params), (other_step, other_params) = final_params(one), final_params(other)
    assert step == other_step
    assert params.keys() == other_params.keys()
    for name, value in params.items():
        np.testing.assert_array_equal(value, other_params[name], err_msg=name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Work directory and console of an uninterrupted run."""
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    code, output = finish(start(workdir))
    assert code == 0, output
    return workdir, output


def test_a_run_leaves_everything_it_should(whole):
    workdir, output = whole
    names = {path.name for path in workdir.iterdir()}
    assert names >= {"metrics.jsonl", "config.json", "sizes.json", "train.log", "curves.png", "tensorboard"}
    assert names >= {"checkpoints", "trajectories"}
    rows = read_metrics(workdir / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert ["eval/avg_at_k" in row for row in rows] == [True, False, True, False, True]
    assert sum(row.get("train/updates", 0) for row in rows) > 0, "nothing was learned from"
    assert json.loads((workdir / "config.json").read_text())["train"]["steps"] == 4
    for wanted in ("arm        taorl changes nothing", "isolation:", "checkpoints/4", "curves.png", "policy"):
        assert wanted in output
    assert len((workdir / "train.log").read_text()) < 20_000, "the log is not flooded"


def test_sampler_and_trainer_agree(whole):
    for row in numbers(whole[0])[1:]:
        if row["train/updates"]:
            assert row["train/sampler_gap_max"] < 1e-4
            assert row["train/sampler_pearson"] > 0.999


def test_logged_trajectories_hold_the_invariants(whole):
    episodes = [e for path in sorted((whole[0] / "trajectories").iterdir()) for e in read_trajectories(path)]
    assert episodes
    assert any(episode["calls"] for episode in episodes)
    for episode in episodes:
        mask = episode["loss_mask"]
        assert len({len(episode[name]) for name in ("tokens", "loss_mask", "logprobs", "entropies")}) == 1
        assert not episode["reshaped_advantages"][~mask].any()
        assert (episode["logprobs"][mask] <= 0).all()
        assert (episode["entropies"][mask] >= 0).all()
        changed = episode["reshaped_advantages"] != episode["advantages"]
        assert not changed[~episode["post_tool_mask"]].any()


def test_a_recorded_step_replays_to_the_numbers_of_the_run(whole):
    """Step 4 from the checkpoint of step 3, by the command."""
    names = ("--config", "experiments/quickstart.py", "--workdir", str(whole[0]), "--step", "4")
    settings = [f"--config.{name}={value}" for name, value in SHRINK.items()]
    done = subprocess.run(
        [sys.executable, "tools/replay_step.py", *names, *settings], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    replayed, logged = json.loads(done.stdout), numbers(whole[0])[4]
    assert replayed["train/updates"] > 0
    assert replayed == {name: logged[name] for name in replayed}


def test_sigkill_and_resume_equal_the_uninterrupted_run(whole, tmp_path):
    """Killed in the middle of the third step; the second checkpoint or the one before it is resumed."""
    process = start(tmp_path / "killed")
    wait_for_step(process, tmp_path / "killed", 2)
    process.send_signal(signal.SIGKILL)
    finish(process)
    assert len(numbers(tmp_path / "killed")) < 5
    code, output = finish(start(tmp_path / "killed"))
    assert code == 0, output
    assert_same_run(whole[0], tmp_path / "killed")


def test_sigterm_keeps_the_last_finished_step(whole, tmp_path):
    """Checkpoints are rarer than steps here, so what is kept was saved because of the signal."""
    workdir = tmp_path / "stopped"
    process = start(workdir, checkpoint__every=4)
    wait_for_step(process, workdir, 1)
    started = process_tree.descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    code, output = finish(process)
    assert code == 0, output
    assert len(started) > 1, "the sandbox and its lanes were there"
    assert not [pid for pid in started if pathlib.Path(f"/proc/{pid}").exists()], "something runs on"
    assert "SIGTERM: stopped after step" in output
    step, _ = final_params(workdir)
    assert step in (1, 2, 3)
    assert f"stopped after step {step}" in output
    code, output = finish(start(workdir, checkpoint__every=4))
    assert code == 0, output
    assert_same_run(whole[0], workdir)


def test_a_sandbox_killed_in_the_middle_changes_no_number(whole, tmp_path):
    workdir = tmp_path / "outage"
    process = start(workdir)
    wait_for_step(process, workdir, 0)
    for _ in range(2):
        time.sleep(1.0)
        for pid in _services_of(process.pid):
            os.kill(pid, signal.SIGKILL)
    code, output = finish(process)
    assert code == 0, output
    assert "restart 1" in (workdir / "train.log").read_text()
    assert_same_run(whole[0], workdir)


def _services_of(parent):
    """Pids of the sandbox services that a process started."""
    for path in pathlib.Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                status, line = (path / "stat").read_text(), (path / "cmdline").read_text()
            except FileNotFoundError:
                continue
            if int(status.rsplit(")", 1)[1].split()[1]) == parent and "sandbox_service" in line:
                yield int(path.name)


def test_an_outage_that_outlasts_the_patience_stops_the_run_and_costs_nothing(whole, tmp_path):
    """A service of the user's own dies and comes back an hour later, so to say."""
    workdir = tmp_path / "run"
    with LocalSandbox(lanes=2, min_isolation="weak", log_path=tmp_path / "one.log") as service:
        urls = {"sandbox__urls": f"('{service.url}',)", "sandbox__patience_s": 3.0, "checkpoint__every": 4}
        process = start(workdir, **urls)
        wait_for_step(process, workdir, 1)
    code, output = finish(process)
    assert code == 1, output
    message = " ".join(output.split())
    assert f"no sandbox answers at {service.url}" in message
    step, _ = final_params(workdir)
    assert f"Step {step} is kept" in message
    code, output = finish(start(workdir, checkpoint__every=4))
    assert code == 0, output
    assert_same_run(whole[0], workdir)


def test_eight_devices_give_the_same_losses(whole, tmp_path):
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    mesh = {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2, "train__steps": 1, "eval__every": 0}
    done = subprocess.run(
        command(tmp_path / "mesh", **mesh), cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    alone, spread = numbers(whole[0])[1], numbers(tmp_path / "mesh")[1]
    np.testing.assert_allclose(spread["train/loss"], alone["train/loss"], atol=1e-5)
    for name in spread:
        np.testing.assert_allclose(spread[name], alone[name], rtol=1e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"sandbox__urls": "('http://127.0.0.1:9',)"}, "no sandbox service answers at http://127.0.0.1:9"),
        ({"policy__checkpoint": "nowhere"}, "policy.checkpoint: nowhere has no config.json"),
        ({"rollout__prompts": 5}, "rollout.prompts = 5 is not divisible by train.minibatches = 2"),
        ({"data__train": "nowhere.jsonl"}, "data.train: no such file: nowhere.jsonl"),
        ({"mesh__data": 2}, "2 devices, but jax sees 1"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_at_the_start(tmp_path, overrides, message):
    code, output = finish(start(tmp_path / "run", **overrides))
    assert code == 1
    assert message in output.replace("\n", " ")
    assert "Traceback" not in output


def test_a_malformed_row_is_refused_with_its_line(tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text('{"problem": "1+1?", "answer": "2"}\n{"problem": "no answer"}\n')
    code, output = finish(start(tmp_path / "run", data__train=data))
    assert code == 1
    assert "data.jsonl:2: field `answer` is missing" in output.replace("\n", "")


def test_a_workdir_of_another_config_is_refused_and_left_alone(whole):
    before = (whole[0] / "metrics.jsonl").read_bytes()
    code, output = finish(start(whole[0], train__learning_rate=0.5))
    assert code == 1
    assert "train.learning_rate: 0.0003 there, 0.5 now" in output
    assert (whole[0] / "metrics.jsonl").read_bytes() == before


def test_a_run_beyond_its_steps_is_refused(whole):
    code, output = finish(start(whole[0], train__steps=3))
    assert code == 1
    assert "is at step 4 already, beyond train.steps=3" in " ".join(output.split())


def test_a_full_disk_ends_the_run_with_a_message_and_an_intact_checkpoint(whole, tmp_path):
    """Files may not grow beyond 600 kB: the policy's weights (2.6 MB) do not fit into a checkpoint."""
    import resource

    limited = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
    process = subprocess.Popen(
        command(tmp_path / "run", checkpoint__every=2),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=limited,
        env=os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"},
    )
    code, output = finish(process)
    assert code == 1, output
    # tensorstore's callbacks into orbax's closed event loop write tracebacks before; ours is the last word.
    message = output.rsplit("error: ", 1)[1]
    assert "failed, with" in message and "Make room" in message
    assert "Traceback" not in message
    code, output = finish(start(tmp_path / "run", checkpoint__every=2))
    assert code == 0, output
    assert_same_run(whole[0], tmp_path / "run")


def test_a_finished_run_goes_on_when_steps_are_added(whole, tmp_path):
    import shutil

    shutil.copytree(whole[0], tmp_path / "more")
    code, output = finish(start(tmp_path / "more", train__steps=5))
    assert code == 0, output
    assert [row["step"] for row in numbers(tmp_path / "more")] == [0, 1, 2, 3, 4, 5]
    assert numbers(tmp_path / "more")[:5] == numbers(whole[0])


def test_groups_without_signal_end_the_run_with_a_checkpoint_and_a_reason(tmp_path):
    """Golds that nobody can reach: every group is all wrong."""
    data = tmp_path / "data.jsonl"
    data.write_text("".join(f'{{"problem": "What is {i} + 1?", "answer": "x_{i}"}}\n' for i in range(40)))
    workdir = tmp_path / "run"
    code, output = finish(start(workdir, data__train=data, filter__max_empty_steps=2, eval__every=0))
    assert code == 1
    assert "no group in 2 steps in a row" in " ".join(output.split())
    assert "groups_all_wrong 100%" in output.replace("\n", " ")
    assert final_params(workdir)[0] == 2


def test_gradients_that_are_not_finite_end_the_run_with_a_way_out(tmp_path):
    """A rate of 1e30 makes the second update's gradient NaN; it changes nothing, and stops the run."""
    settings = {"train__learning_rate": 1e30, "train__decay_updates": 0, "train__max_nonfinite": 1}
    code, output = finish(start(tmp_path / "run", **settings, eval__every=0, log__replay_every=0))
    assert code == 1
    assert "not finite in 1 updates in a row" in output and "train.learning_rate" in output


def test_every_option_of_the_loss_in_a_run(tmp_path):
    options = {
        "loss__aggregation": "sequence_mean",
        "loss__kl_coefficient": 0.1,
        "loss__entropy_coefficient": 0.01,
        "loss__importance_cap": 2.0,
        "train__decay_norms": False,
    }
    code, output = finish(start(tmp_path / "run", **options, train__steps=2, eval__every=0))
    assert code == 0, output
    _, first, second = numbers(tmp_path / "run")  # step 0 has only evaluations
    # Sampler and trainer agree, so that the weights are 1 and none is truncated.
    assert abs(first["train/importance_mean"] - 1) < 1e-4 and first["train/importance_capped"] == 0
    # The reference is the initial policy: the first update sees no divergence, later ones do.
    assert 0 < first["train/reference_kl"] < second["train/reference_kl"] < 1
