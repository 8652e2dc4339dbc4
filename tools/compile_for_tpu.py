"""Compiles a config's programs for a TPU topology, on a machine without a TPU, and says whether they fit.

    python tools/compile_for_tpu.py --config experiments/qwen2_5_7b.py:pod=v5e-64 --topology v5e:8x8

Needs libtpu (`pip install -r requirements-compile.txt`). The update is compiled over the whole topology, the
sampler over one host's chips of it. Per program it prints memory a chip by kind, operations and memory
traffic (counted from the policy's sizes), collectives (read from the compiled program, loops counted out),
and the least time and MFU that follow from the chip's peak figures. Weights are not needed: where
policy.checkpoint is not there, the sizes are the preset that bears the config's name. Status 1 if a program
does not fit.
"""

import argparse
import functools
import os
import pathlib
import runpy
import sys

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
TYPES = {"v5e": "v5litepod", "v5p": "v5p", "v6e": "v6e"}


def main(argv=None) -> int:
    """Prints the tables; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--config", required=True, help="as of the training command, with :pod=... if it has any"
    )
    parser.add_argument("--topology", required=True, help="such as v5e:8x8, v6e:4x4, v5p:2x2x4")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting to override"
    )
    parser.add_argument("--only", help="only programs whose name holds this")
    parser.add_argument(
        "--all", action="store_true", help="every length of the sampler's cache, not the longest"
    )
    arguments = parser.parse_args(argv)
    from taorl_jax.errors import UserError

    try:
        return check(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def check(arguments) -> int:
    """Compiles and prints; 1 if something does not fit."""
    from taorl_jax.distributed.chips import chip_of

    chip = chip_of(arguments.topology)
    devices = topology_devices(arguments.topology)
    config = read_config(arguments.config, arguments.set)
    too_large = []
    for name, fit, sampler in compile_all(config, devices, chip, arguments):
        if isinstance(fit, str):
            print(f"{name}: DOES NOT FIT: {fit}", flush=True)
        else:
            print(describe(fit, chip, sampler), flush=True)
        if isinstance(fit, str) or fit.total > chip.hbm:
            too_large.append(name)
    print("does not fit: " + ", ".join(too_large) if too_large else "everything fits")
    return 1 if too_large else 0


def topology_devices(name: str):
    """The chips of a topology, as devices that can be compiled for."""
    kind, _, extent = name.partition(":")
    chips = functools.reduce(int.__mul__, map(int, extent.split("x")))
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no chip is used that two processes could fight over
        "JAX_PLATFORMS": "cpu",
        "TPU_ACCELERATOR_TYPE": f"{TYPES[kind]}-{chips}",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
    }
    from jax.experimental import topologies

    from taorl_jax.errors import UserError

    try:
        return topologies.get_topology_desc(topology_name=name, platform="tpu").devices
    except Exception as error:
        raise UserError(f"--topology {name}: {error}; libtpu comes with requirements-compile.txt") from error


def read_config(text: str, settings: list[str]):
    """The config file with overrides."""
    import ast

    path, _, argument = text.partition(":")
    config = runpy.run_path(path)["get_config"](argument)
    for setting in settings:
        name, _, value = setting.partition("=")
        config.update_from_flattened_dict({name: ast.literal_eval(value)})
    return config


def model_of(config):
    """The policy's sizes: of its folder, or of the preset with the config's name."""
    from taorl_jax.models.model_config import read_model_config
    from taorl_jax.models.presets import PRESETS

    if config.name in PRESETS and not (pathlib.Path(config.policy.checkpoint) / "config.json").is_file():
        return PRESETS[config.name]
    return read_model_config(config.policy.checkpoint)


def compile_all(config, devices, chip, arguments):
    """Yields (name, Fit or why it cannot be, whether it is of the sampler) of each program."""
    from taorl_jax.config import validate
    from taorl_jax.distributed import mesh as meshes
    from taorl_jax.rollout.engine import Engine
    from taorl_jax.rollout.stopping import build_stop_table
    from taorl_jax.training.learner import Learner

    model = model_of(config)
    hosts = len({device.process_index for device in devices})
    validate(config, model, len(devices), hosts)
    mesh = meshes.make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor, devices)
    tensor = config.mesh.rollout_tensor or config.mesh.tensor
    learner = Learner(model, mesh, config)
    own = host_topology(arguments.topology, len(devices) // hosts)
    table = build_stop_table([bytes([i]) for i in range(256)], model.vocab_size)
    local = meshes.make_mesh(len(own) // tensor, 1, tensor, own)
    engine = Engine(model, local, config.rollout, config.policy, table, [0, 1])
    sizes, blocks = engine.sizes, engine.sizes.buckets
    sampling = {program.name: program for program in engine.programs()}
    state = device_bytes(learner.abstract_state())
    # Between rollouts the sampler's cache has its least length.
    idle = device_bytes(sampling[sizes.name("decode", blocks[0])].arguments[2])
    costs = costs_of(model, config, sizes, len(devices), len(own) // tensor)
    for programs, count, beside in (
        (learner.programs(), len(devices), idle),
        (sampling.values(), len(own), state),
    ):
        sampler = programs is not None and beside == state
        for program in programs:
            longest = any(
                program.name == sizes.name(kind, blocks[-1]) for kind in ("decode", "extend", "fork")
            )
            wanted = not sampler or arguments.all or longest or "[" not in program.name
            if wanted and (arguments.only is None or arguments.only in program.name):
                cost, trips = costs.get(program.name, (None, ()))
                yield program.name, fit_of(program, cost, count, chip, trips, beside), sampler


def fit_of(program, cost, chips, chip, trips, beside):
    """Compiles one program and measures it; a sentence where the compiler says that it is too large."""
    import jax

    from taorl_jax.distributed import fit, hlo

    try:
        compiled = program.compile()
    except jax.errors.JaxRuntimeError as error:
        # A compiler that cannot place a program refuses it, and says how much it wanted.
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return str(error).splitlines()[0]
    traffic = hlo.collectives(compiled.as_text(), trips)
    return fit.measure(program.name, compiled, cost, chips, chip, traffic, beside)


def costs_of(model, config, sizes, chips, copies):
    """Name of a program -> (cost, turns of its nested loops whose number is data)."""
    from taorl_jax.config import row_tokens
    from taorl_jax.distributed import cost

    r, held = config.rollout, sizes.buckets[-1] * sizes.block
    rows = r.prompts // config.train.minibatches * r.samples
    micro = -(-rows // config.train.micro_rows)
    own_tokens = config.train.micro_rows * row_tokens(config) // (config.mesh.data * config.mesh.fsdp)
    trips = micro, -(-own_tokens // config.train.head_chunk)
    sampler = functools.partial(cost.sampler_cost, model, copies=copies)
    return {
        "update": (cost.update_cost(model, config, micro, chips), trips),
        "score": (cost.score_cost(model, config, micro, chips), trips),
        "prefill": (sampler(rows=r.prefill_rows, tokens=r.prefill_tokens, calls=1, held=r.prompt_tokens), ()),
        sizes.name("decode", sizes.buckets[-1]): (
            sampler(rows=r.slots, tokens=1, calls=r.chunk, held=held), (r.chunk,),
        ),
        sizes.name("extend", sizes.buckets[-1]): (
            sampler(rows=r.extend_rows, tokens=r.extend_tokens, calls=1, held=held), (),
        ),
    }  # fmt: skip


def host_topology(name: str, chips: int):
    """The chips of one host by themselves: the sampler's programs know no others."""
    kind = name.partition(":")[0]
    extents = {1: "1x1", 4: "2x2", 8: "2x4"} if kind != "v5p" else {4: "2x2x1"}
    return topology_devices(f"{kind}:{extents[chips]}")


def device_bytes(tree) -> int:
    """Bytes on one device of abstract arrays with shardings."""
    import math

    import jax

    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(tree)
        if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    )


def describe(fit, chip, sampler) -> str:
    """A program's lines, for people."""
    from taorl_jax.distributed.fit import advice

    kinds = ("arguments", "results", "temporaries", "code", "beside")
    memory = "  ".join(f"{kind} {getattr(fit, kind) / 2**30:.2f}" for kind in kinds)
    room = (chip.hbm - fit.total) / 2**30
    verdict = (
        f"fits, {room:.2f} to spare" if room >= 0 else f"DOES NOT FIT by {-room:.2f}: {advice(fit, sampler)}"
    )
    lines = [
        f"{fit.name}: {fit.total / 2**30:.2f} of {chip.hbm / 2**30:.0f} GiB a chip, {verdict}",
        f"  {memory}",
    ]
    if fit.collectives:
        traffic = (f"{kind} {n} x, {size / 1e9:.3g} GB" for kind, (n, size) in fit.collectives.items())
        lines.append("  collectives a chip: " + "; ".join(traffic))
    if fit.cost is not None:
        lines.append(
            f"  {fit.cost.flops:.3g} operations, {fit.cost.bytes:.3g} bytes over all chips; least time "
            f"{fit.seconds:.4g} s (compute {fit.compute_s:.4g}, memory {fit.memory_s:.4g}, network "
            f"{fit.network_s:.4g}); MFU at most {fit.mfu:.0%}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
