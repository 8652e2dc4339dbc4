"""The mesh, the rules from logical axes to mesh axes, and the two placements of one policy.

Training shards parameters over the whole mesh; rollout keeps them tensor-parallel and replicates them over
`data` and `fsdp`, over which its slots are spread.
"""

import contextlib

import flax.linen as nn
import jax
from jax.sharding import NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "tensor")


def make_mesh(data: int, fsdp: int, tensor: int) -> jax.sharding.Mesh:
    """A mesh over the first data * fsdp * tensor devices (the count is checked by config.validate)."""
    devices = jax.devices()[: data * fsdp * tensor]
    auto = (jax.sharding.AxisType.Auto,) * len(AXES)
    return jax.make_mesh((data, fsdp, tensor), AXES, axis_types=auto, devices=devices)


def training_rules(kv_heads: int, tensor: int):
    """Logical axis -> mesh axes of the sharded placement; KV heads are replicated where they don't divide."""
    return (
        ("batch", ("data", "fsdp")),
        ("length", None),
        ("activation", None),
        ("layers", None),
        ("embed", "fsdp"),
        ("norm", None),
        ("vocab", "tensor"),
        ("heads", "tensor"),
        ("kv_heads", "tensor" if kv_heads % tensor == 0 else None),
        ("head_dim", None),
        ("mlp", "tensor"),
    )


def rollout_rules(kv_heads: int, tensor: int):
    """As in training, but parameters are whole on every `data` and `fsdp` coordinate."""
    return tuple((axis, None if axis == "embed" else to) for axis, to in training_rules(kv_heads, tensor))


def param_shardings(axes, mesh, rules):
    """Shardings of a tree of logical axis names (tuples)."""

    def sharding(names):
        return NamedSharding(mesh, nn.logical_to_mesh_axes(names, rules))

    return jax.tree.map(sharding, axes, is_leaf=lambda x: isinstance(x, tuple))


def rows(mesh) -> NamedSharding:
    """Leading axis spread over `data` and `fsdp`: batch rows in training, slots in rollout."""
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def replicated(mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


@contextlib.contextmanager
def logical_axes(mesh, rules):
    """Within it, `nn.with_logical_constraint` resolves against this mesh and these rules."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
        yield
