"""The policy as the sampler wants it: in the compute type, a tree of its own for each layer."""

import jax

from taorl_jax.distributed import mesh as meshes
from taorl_jax.models import transformer
from taorl_jax.models.model_config import ModelConfig


def policy_params(dtype, params):
    """Parameters of training (stacked layers, float32) -> those of the sampler; norms stay float32."""

    def cast(path, x):
        return x if path[-1].key == "scale" else x.astype(dtype)

    return jax.tree.map_with_path(cast, transformer.unstack_layers(params))


def abstract_policy_params(model: ModelConfig, dtype, mesh):
    """Shapes, dtypes and shardings of `policy_params`, without making any."""
    shapes, axes = transformer.abstract_params(model)
    shapes = jax.eval_shape(lambda params: policy_params(dtype, params), shapes)
    shardings = policy_shardings(model, axes, mesh)
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes, shardings
    )


def policy_shardings(model: ModelConfig, axes, mesh):
    """Tensor-parallel, replicated over `data` and `fsdp`; `axes` are those of the stacked parameters."""
    layer = jax.tree.map(lambda names: names[1:], axes["layers"], is_leaf=lambda x: isinstance(x, tuple))
    rest = {name: value for name, value in axes.items() if name != "layers"}
    unstacked = rest | {f"layer_{i}": layer for i in range(model.layers)}
    return meshes.param_shardings(unstacked, mesh, meshes.rollout_rules(model.kv_heads, mesh.shape["tensor"]))
