"""The mesh, the rules from logical axes to mesh axes, and the two placements of one policy.

Training shards parameters over the whole mesh, that is over every host. The sampler's mesh is made of one
host's own devices: parameters are tensor-parallel in it, and slots are spread over what is left.
"""

import contextlib

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from taorl_jax.config import mesh_axes

AXES = ("data", "fsdp", "tensor")
# The sampler's, whatever the rules of training: parameters are whole on every `data` coordinate.
ROLLOUT_RULES = {
    "batch": "data,fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    **dict.fromkeys(("length", "activation", "layers", "embed", "norm", "head_dim"), ""),
}


def make_mesh(data: int, fsdp: int, tensor: int, devices=None) -> Mesh:
    """A mesh over the first data * fsdp * tensor devices (the count is checked by config.validate).

    Devices go host by host, so that the inner axes stay inside hosts as far as they fit.

    Args:
      data: size of the axis, as are `fsdp` and `tensor`.
      fsdp: see data.
      tensor: see data.
      devices: all there are; None: those of the run.
    """
    devices = sorted(jax.devices() if devices is None else devices, key=lambda d: (d.process_index, d.id))
    return _mesh(devices[: data * fsdp * tensor], (data, fsdp, tensor), AXES)


def rollout_mesh(mesh: Mesh, tensor: int) -> Mesh:
    """The mesh of this host's sampler: its own devices of the training mesh, `tensor` of them to a copy."""
    devices = list(mesh.devices.flat)
    hosts = {device.process_index for device in devices}
    # A topology that is only compiled for has other hosts than this process: the first stands for all.
    host = jax.process_index() if jax.process_index() in hosts else min(hosts)
    own = [device for device in devices if device.process_index == host]
    return _mesh(own, (len(own) // tensor, 1, tensor), AXES)


def over_hosts(mesh: Mesh, tensor: int) -> Mesh:
    """Every host's `rollout_mesh` along an axis "host": the devices of the training mesh in its order."""
    devices = list(mesh.devices.flat)
    hosts = len({device.process_index for device in devices})
    return _mesh(devices, (hosts, len(devices) // hosts // tensor, 1, tensor), ("host", *AXES))


def _mesh(devices, shape, axes) -> Mesh:
    auto = (jax.sharding.AxisType.Auto,) * len(axes)
    return Mesh(np.array(devices).reshape(shape), axes, axis_types=auto)


def to_local(tree, mesh: Mesh):
    """Arrays whose sharding does not use the axis "host" -> the same over one host's mesh, nothing copied."""

    def local(x):
        shards = [shard.data for shard in x.addressable_shards]
        sharding = NamedSharding(mesh, x.sharding.spec)
        return jax.make_array_from_single_device_arrays(x.shape, sharding, shards)

    return jax.tree.map(local, tree)


def put(x, sharding: NamedSharding) -> jax.Array:
    """An array on the mesh; of a numpy array, the same on every host, each host sends its own shards only."""
    if isinstance(x, np.ndarray):
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
    return jax.device_put(x, sharding)


def training_rules(kv_heads: int, tensor: int, rules) -> tuple:
    """Logical axis -> mesh axes; KV heads are replicated over `tensor` where they don't divide.

    Args:
      kv_heads: of the policy.
      tensor: size of that mesh axis.
      rules: logical axis -> names of mesh axes with a comma between, as `mesh.rules` of the config.
    """
    axes = {name: mesh_axes(rule) for name, rule in rules.items()}
    if kv_heads % tensor:
        axes["kv_heads"] = tuple(axis for axis in axes["kv_heads"] if axis != "tensor")
    return tuple((name, to[0] if len(to) == 1 else to or None) for name, to in axes.items())


def rollout_rules(kv_heads: int, tensor: int) -> tuple:
    """As `training_rules`, of the sampler."""
    return training_rules(kv_heads, tensor, ROLLOUT_RULES)


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
