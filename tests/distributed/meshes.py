"""Run by test_meshes.py in a process of its own: gradients on many meshes, and collectives of the head.

Prints JSON: the largest difference of a gradient from that on one device, by mesh, relative to the leaf's
largest value; and the collectives of the compiled update (opcode, elements, operation).
"""

import json
import math
import pathlib
import re

import jax
import numpy as np
import worlds
from training.episodes import batch_of, make_episodes

from taorl_jax.config import base_config
from taorl_jax.distributed import mesh as meshes
from taorl_jax.models.model_config import ModelConfig
from taorl_jax.models.transformer import Decoder, abstract_params
from taorl_jax.training.learner import Learner
from taorl_jax.training.update import ForwardSettings, accumulated_gradient

MODEL = ModelConfig(640, 32, 48, 2, 4, 2, 8, 256, tied_embeddings=False)
MESHES = [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (1, 4, 1), (1, 2, 4), (2, 2, 2), (1, 8, 1)]
BOUNDS = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}
COLLECTIVE = re.compile(
    r"= (.+?) (all-gather|reduce-scatter|all-reduce|all-to-all|collective-permute)(?:-start)?\("
)


def gradient(params, mesh):
    rules = meshes.training_rules(MODEL.kv_heads, mesh.shape["tensor"], base_config().mesh.rules)
    _, axes = abstract_params(MODEL)
    params = jax.device_put(params, meshes.param_shardings(axes, mesh, rules))
    layout, packed = batch_of(make_episodes(300), micro_rows=8, row_tokens=32, extra_rows=2)
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, ("data", "fsdp")))
    packed = jax.device_put(packed, spread)
    with meshes.logical_axes(mesh, rules):
        run = jax.jit(
            lambda p, b: accumulated_gradient(
                MODEL, ForwardSettings(head_chunk=7), BOUNDS, p, b, layout.micro_batches
            )[0]
        )
        return jax.device_get(run(params, packed))


def collectives():
    """Of the update on fsdp 4 x tensor 2."""
    config = worlds.make_config(
        pathlib.Path("none"), mesh__fsdp=4, mesh__tensor=2, train__micro_rows=8, train__head_chunk=16
    )
    learner = Learner(MODEL, meshes.make_mesh(1, 4, 2), config)
    (update,) = [program for program in learner.programs() if program.name == "update"]
    found = []
    for line in update.compile().as_text().splitlines():
        if match := COLLECTIVE.search(line):
            shapes = re.findall(r"\[([\d,]*)\]", match.group(1))
            elements = sum(math.prod(int(n) for n in shape.split(",") if n) for shape in shapes)
            operation = re.search(r'op_name="([^"]*)"', line)
            found.append((match.group(2), elements, operation.group(1) if operation else ""))
    return found


def main():
    tokens = np.zeros((1, 1), np.int32)
    boxed = Decoder(MODEL).init(jax.random.key(0), tokens, tokens)["params"]
    params = jax.tree.map(lambda box: box.value * 5, boxed, is_leaf=lambda box: hasattr(box, "names"))
    alone = gradient(params, meshes.make_mesh(1, 1, 1))
    differences = {}
    for shape in MESHES:
        spread = gradient(params, meshes.make_mesh(*shape))
        relative = jax.tree.map(lambda a, b: float(np.abs(a - b).max() / np.abs(b).max()), spread, alone)
        differences[str(shape)] = max(jax.tree.leaves(relative))
    return {"differences": differences, "collectives": collectives()}


if __name__ == "__main__":
    print(json.dumps(main()))
