"""Checkpoint folders that are broken, and what is said of them."""

import shutil

import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("torch", reason="the oracle is installed on Python 3.11 only")

from models.oracles import load, make_oracle

from taorl_jax.models.model_config import CheckpointError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    make_oracle("qwen2", folder)
    return folder


def test_broken_checkpoints_are_refused_by_name(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "broken")
    file = tmp_path / "broken" / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    del tensors["model.norm.weight"]
    tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((3, 36), np.float32)
    tensors["stranger"] = np.zeros(1, np.float32)
    safetensors.numpy.save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight.*stranger.*up_proj.*\(3, 36\)"):
        load(tmp_path / "broken")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"model\.safetensors can't be read"):
        load(tmp_path / "broken")
