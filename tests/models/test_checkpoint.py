"""Checkpoint folders against `transformers` and `safetensors`: read, refused by name, written back."""

import errno
import importlib
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from worlds import make_policy

from taorl_jax.models.checkpoint import files, load_params, save_params, write
from taorl_jax.models.model_config import CheckpointError, read_model_config
from taorl_jax.models.transformer import abstract_params

DEVICE = jax.sharding.SingleDeviceSharding(jax.devices()[0])
UP = "model.layers.1.mlp.up_proj.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def folder(policy, tmp_path):
    return shutil.copytree(policy, tmp_path / "copy")


@pytest.fixture
def split(policy, tmp_path):
    """The same policy in several files with an index."""
    config, params = load(policy)
    save_params(params, config, tmp_path / "split", like=policy, max_bytes=20_000)
    return tmp_path / "split"


def load(folder, dtype=jnp.float32):
    config = read_model_config(folder)
    shapes, _ = abstract_params(config)
    return config, load_params(folder, jax.tree.map(lambda _: DEVICE, shapes), dtype)


def tensors_of(folder):
    """What the safetensors library reads from all files."""
    parts = [safetensors.numpy.load_file(path) for path in sorted(folder.glob("*.safetensors"))]
    return {name: value for part in parts for name, value in part.items()}


def rewrite(folder, change):
    tensors = tensors_of(folder)
    change(tensors)
    safetensors.numpy.save_file(tensors, folder / files.SINGLE)


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        assert one[name].tobytes() == other[name].tobytes(), name


def test_parameters_are_the_tensors_transposed(policy):
    _, params = load(policy)
    tensors = tensors_of(policy)
    np.testing.assert_array_equal(params["layers"]["mlp"]["up_kernel"][1], tensors[UP].T)
    query = params["layers"]["attention"]["query_kernel"][0]  # [hidden, heads, head_dim]
    np.testing.assert_array_equal(query.reshape(32, 32), tensors[QUERY].T)


def test_many_small_readings_make_the_same_parameters(policy, monkeypatch):
    _, whole = load(policy)
    monkeypatch.setattr(importlib.import_module("taorl_jax.models.checkpoint.load"), "_PIECE_BYTES", 1)
    _, pieced = load(policy)
    jax.tree.map(np.testing.assert_array_equal, pieced, whole)


@pytest.mark.parametrize("stored", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("wanted", [jnp.bfloat16, jnp.float32])
def test_every_stored_type_is_read_into_every_wanted_type(folder, stored, wanted):
    rewrite(folder, lambda tensors: tensors.update({k: v.astype(stored) for k, v in tensors.items()}))
    _, params = load(folder, wanted)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(wanted)}
    expected = tensors_of(folder)[UP].T.astype(wanted)
    np.testing.assert_array_equal(params["layers"]["mlp"]["up_kernel"][1], expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_round_trip_is_bit_equal_in_every_type(folder, tmp_path, dtype):
    rewrite(folder, lambda tensors: tensors.update({k: v.astype(dtype) for k, v in tensors.items()}))
    config, params = load(folder)
    save_params(params, config, tmp_path / "again", like=folder, dtype=dtype)
    assert_same_bits(tensors_of(tmp_path / "again"), tensors_of(folder))
    assert json.loads((tmp_path / "again" / "config.json").read_text())["dtype"] == dtype


def test_many_files_hold_what_one_does(policy, split):
    assert len(list(split.glob("model-*-of-*.safetensors"))) > 2
    assert not (split / files.SINGLE).exists()
    assert_same_bits(tensors_of(split), tensors_of(policy))
    _, one = load(policy)
    _, many = load(split)
    jax.tree.map(np.testing.assert_array_equal, one, many)
    for path in split.glob("*.safetensors"):
        assert path.stat().st_size < 20_000 + 4_000 or len(safetensors.numpy.load_file(path)) == 1


def test_transformers_loads_what_is_saved(policy, split):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch", reason="the oracle is installed on Python 3.11 only")
    tokens = torch.arange(40)[None]
    one, many = (
        transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
        for folder in (policy, split)
    )
    assert torch.equal(one(tokens).logits, many(tokens).logits)
    tokenizer = transformers.AutoTokenizer.from_pretrained(split, local_files_only=True)
    assert tokenizer.chat_template


def test_a_broken_index_is_refused(split):
    index = split / files.INDEX
    whole = index.read_text()
    gone = sorted(split.glob("*.safetensors"))[1]
    kept = gone.read_bytes()
    gone.unlink()
    with pytest.raises(CheckpointError, match=rf"{gone.name}.*is missing"):
        load(split)
    gone.write_bytes(kept)
    raw = json.loads(whole)
    raw["weight_map"][UP] = raw["weight_map"]["model.embed_tokens.weight"]
    index.write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match=rf"puts {UP} into model-00001-of.*where it is not"):
        load(split)
    index.write_text(whole[:100])
    with pytest.raises(CheckpointError, match=rf"{files.INDEX} is no index"):
        load(split)


def test_two_checkpoints_in_one_folder_are_refused(policy, split):
    shutil.copyfile(policy / files.SINGLE, split / files.SINGLE)
    with pytest.raises(CheckpointError, match=rf"both {files.SINGLE} and {files.INDEX}"):
        load(split)
    (split / files.INDEX).unlink()
    with pytest.raises(CheckpointError, match=r"is in both .*model-00001-of-\d+\.safetensors and model\.saf"):
        load(split)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda data: data[:-1], r"model\.safetensors can't be read .*copy it again"),
        (lambda data: data[:100], r"model\.safetensors can't be read .*copy it again"),
        (lambda data: b"\xff" * 50 + data[50:], r"model\.safetensors can't be read .*copy it again"),
        (lambda data: b"", r"model\.safetensors can't be read .*copy it again"),
        (lambda data: b"version https://git-lfs.github.com/spec/v1\noid 1", r"git lfs pull"),
    ],
)
def test_damaged_files_are_refused(folder, damage, told):
    file = folder / files.SINGLE
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CheckpointError, match=told):
        load(folder)


def test_a_folder_without_weights_is_refused(folder):
    (folder / files.SINGLE).unlink()
    with pytest.raises(CheckpointError, match=r"has no \*\.safetensors"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.pop(UP), rf"missing: {UP}"),
        (lambda t: t.update(stranger=t[UP]), r"unknown: stranger"),
        (lambda t: t.update({UP: t[UP][:3]}), rf"of another shape: {UP} \(3, 32\), not \(48, 32\)"),
        (lambda t: t.update({UP: t[UP].astype(np.int8)}), rf"of a type other than .*: {UP} I8"),
        (lambda t: [t.pop(name) for name in list(t)[:8]], r"missing: (model\S+, ){4}model\S+ and 3 more"),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder, change, told):
    rewrite(folder, change)
    with pytest.raises(CheckpointError, match=told):
        load(folder)


def test_what_follows_from_the_rest_may_be_there_too(folder):
    _, expected = load(folder)
    table = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    rewrite(folder, lambda t: t.update(table, **{"lm_head.weight": t["model.embed_tokens.weight"]}))
    jax.tree.map(np.testing.assert_array_equal, load(folder)[1], expected)


def test_a_tied_checkpoint_with_an_unembedding_of_its_own_is_refused(folder):
    rewrite(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}))
    with pytest.raises(CheckpointError, match=r"differs from its embedding.*tie_word_embeddings"):
        load(folder)


class DiskFull(OSError):
    """Stands for ENOSPC after some files are written."""


@pytest.fixture
def full_disk(monkeypatch):
    """Makes the third tensor's write fail."""
    write_file, calls = write._write_file, []

    def failing(path, tensors):
        def read():
            raise DiskFull(errno.ENOSPC, "No space left on device")

        calls.append(path)
        spoilt = write.Tensor(tensors[-1].name, tensors[-1].shape, tensors[-1].dtype, read)
        write_file(path, [*tensors[:-1], spoilt] if len(calls) == 3 else tensors)

    monkeypatch.setattr(write, "_write_file", failing)


def test_an_interrupted_save_leaves_the_old_checkpoint(policy, folder, full_disk):
    config, params = load(policy)
    changed = jax.tree.map(lambda x: x + 1, params)
    with pytest.raises(DiskFull):
        save_params(changed, config, folder, like=folder, max_bytes=20_000)
    assert {path.name for path in folder.iterdir()} == {path.name for path in policy.iterdir()}
    assert_same_bits(tensors_of(folder), tensors_of(policy))


def test_an_interrupted_save_into_a_new_folder_loads_nowhere(policy, tmp_path, full_disk):
    config, params = load(policy)
    with pytest.raises(DiskFull):
        save_params(params, config, tmp_path / "new", like=policy, max_bytes=20_000)
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load(tmp_path / "new")


def test_a_process_killed_while_saving_leaves_what_the_next_save_clears(policy, folder):
    leftover = folder / "model-00001-of-00009.safetensors.unfinished"
    leftover.write_bytes(b"cut off")
    _, params = load(folder)
    jax.tree.map(np.testing.assert_array_equal, params, load(policy)[1])
    save_params(params, read_model_config(policy), folder, like=folder)
    assert not leftover.exists()


def test_a_smaller_save_replaces_all_files_of_a_larger(policy, split):
    config, params = load(policy)
    save_params(params, config, split, like=policy)
    assert [path.name for path in split.glob("model*")] == [files.SINGLE]
    assert_same_bits(tensors_of(split), tensors_of(policy))


def test_a_folder_of_another_architecture_is_no_model_to_save_like(policy, folder, tmp_path):
    config, params = load(policy)
    raw = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 3}
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match="another architecture"):
        save_params(params, config, tmp_path / "new", like=folder)
