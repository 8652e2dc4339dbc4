"""The same config on one device and on eight: the same tokens, losses and statistics."""

import hashlib
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

TESTS = pathlib.Path(__file__).parents[1]


def run(policy, *mesh):
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
    }
    script = TESTS / "distributed" / "eight_devices.py"
    done = subprocess.run(
        [sys.executable, script, policy, *map(str, mesh)], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def alone(tiny_policy):
    return run(tiny_policy, 1, 1, 1)


@pytest.mark.parametrize(
    ("mesh", "shard"),
    # up_kernel is [layers 2, hidden 32 over fsdp, MLP 48 over tensor]; tensor=4 exceeds the two KV heads.
    [((2, 2, 2), [2, 16, 24]), ((1, 2, 4), [2, 16, 12]), ((4, 1, 1), [2, 32, 48])],
    ids=str,
)
def test_a_mesh_changes_nothing_but_where_things_lie(alone, tiny_policy, mesh, shard):
    spread = run(tiny_policy, *mesh)
    assert spread["devices"] == np.prod(mesh)
    assert spread["shard"] == shard
    written = (tiny_policy / "model.safetensors").read_bytes()
    assert spread["saved"] == hashlib.sha256(written).hexdigest()
    assert spread["tokens"] == alone["tokens"]
    for here, there in zip(spread["logprobs"], alone["logprobs"], strict=True):
        np.testing.assert_allclose(here, there, atol=1e-4)
    np.testing.assert_allclose(spread["entropy"], alone["entropy"], rtol=1e-5)
    for here, there in zip(spread["losses"], alone["losses"], strict=True):
        for name in there:
            np.testing.assert_allclose(here[name], there[name], rtol=1e-4, atol=1e-5, err_msg=name)
