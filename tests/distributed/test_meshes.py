"""Gradients on 2, 4 and 8 virtual devices in many splits, and where the head communicates."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).parents[1]
TABLE = 640 * 32  # elements of the unembedding; a device's half of the vocabulary has as many by two


@pytest.fixture(scope="module")
def result():
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
    }
    script = TESTS / "distributed" / "meshes.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_the_gradient_is_the_same_on_every_mesh(result):
    assert len(result["differences"]) == 8
    assert max(result["differences"].values()) < 1e-5, result["differences"]


def test_the_unembedding_is_gathered_and_scattered_outside_the_loop_over_chunks(result):
    """One loop is that over micro-batches; a second one inside it, in the head, is that over chunks."""
    head = [
        (opcode, elements, name.count("while/body"))
        for opcode, elements, name in result["collectives"]
        if "shard_map" in name
    ]
    gathers = [(elements, loops) for opcode, elements, loops in head if opcode == "all-gather"]
    assert gathers and all(entry == (TABLE // 2, 1) for entry in gathers)
    scatters = [(elements, loops) for opcode, elements, loops in head if opcode == "reduce-scatter"]
    assert scatters == [(TABLE // 2 // 4, 1)]
    inside = [elements for _, elements, loops in head if loops == 2]
    assert inside and max(inside) <= 3 * 16  # three numbers a token of a chunk
