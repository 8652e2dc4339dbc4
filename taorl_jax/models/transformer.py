"""The policy: a pure decoder, one definition of the layer for training, prefill and decoding.

Architecture: Qwen2 (RMSNorm before each block, rotary positions, grouped-query attention with QKV bias,
SwiGLU). Training scans the stacked layers, so that one layer is compiled whatever the depth; decoding
unrolls them over one cache array a layer. Parameters are a plain pytree, float32 or as loaded; norms,
rotary embedding and softmax are computed in float32 whatever the compute type.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from taorl_jax.models.kv_cache import LayerCache
from taorl_jax.models.model_config import ModelConfig


def rotate(x_BxTxHxD, positions_BxT, theta: float):
    """Rotary position embedding in the half-split layout of Hugging Face (Su et al. 2021)."""
    half = x_BxTxHxD.shape[-1] // 2
    frequency_F = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle_BxTx1xF = positions_BxT[:, :, None, None].astype(jnp.float32) * frequency_F
    cos, sin = jnp.cos(angle_BxTx1xF), jnp.sin(angle_BxTx1xF)
    first, second = jnp.split(x_BxTxHxD.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_BxTxHxD.dtype)


def attend(queries_BxTxHxD, keys_BxKxDxS, values_BxKxSxD, mask_BxTxS):
    """Grouped-query attention; softmax in float32. A query that sees nothing gets a finite average."""
    B, T, H, D = queries_BxTxHxD.shape
    K = keys_BxKxDxS.shape[1]
    queries = queries_BxTxHxD.reshape(B, T, K, H // K, D) * D**-0.5
    scores_BxKxGxTxS = jnp.einsum(
        "btkgd,bkds->bkgts", queries, keys_BxKxDxS, preferred_element_type=jnp.float32
    )
    scores_BxKxGxTxS = jnp.where(mask_BxTxS[:, None, None], scores_BxKxGxTxS, -1e30)
    weights = jax.nn.softmax(scores_BxKxGxTxS, axis=-1).astype(values_BxKxSxD.dtype)
    return jnp.einsum("bkgts,bksd->btkgd", weights, values_BxKxSxD).reshape(B, T, H, D)


class _Module(nn.Module):
    config: ModelConfig
    dtype: Any = jnp.float32

    def weight(self, name, init, shape, axes):
        """A float32 parameter with logical axis names, in the compute type."""
        param = self.param(name, nn.with_logical_partitioning(init, axes), shape, jnp.float32)
        return param.astype(self.dtype)


class RMSNorm(_Module):
    """Root-mean-square norm, in float32 (Zhang & Sennrich 2019)."""

    @nn.compact
    def __call__(self, x):
        scale = self.param(
            "scale", nn.with_logical_partitioning(nn.initializers.ones, ("norm",)), x.shape[-1:], jnp.float32
        )
        x32 = x.astype(jnp.float32)
        mean_square = jnp.mean(x32 * x32, axis=-1, keepdims=True)
        return (x32 * jax.lax.rsqrt(mean_square + self.config.norm_epsilon) * scale).astype(self.dtype)


class Attention(_Module):
    """Self-attention over the tokens given, or over a cache that they are first written to."""

    @nn.compact
    def __call__(self, x_BxTxE, positions_BxT, mask_BxTxS, cache: LayerCache | None, rows_B):
        c = self.config
        init = nn.initializers.normal(0.02)

        def project(name, heads, axis):
            shape = (c.hidden, heads, c.head_dim)
            kernel = self.weight(f"{name}_kernel", init, shape, ("embed", axis, "head_dim"))
            bias = self.weight(f"{name}_bias", nn.initializers.zeros, shape[1:], (axis, "head_dim"))
            return jnp.einsum("bte,ehd->bthd", x_BxTxE, kernel) + bias

        queries = rotate(project("query", c.heads, "heads"), positions_BxT, c.rope_theta)
        keys = rotate(project("key", c.kv_heads, "kv_heads"), positions_BxT, c.rope_theta)
        values = project("value", c.kv_heads, "kv_heads")
        if cache is None:
            seen = LayerCache(keys.transpose(0, 2, 3, 1), values.transpose(0, 2, 1, 3))
        elif rows_B is None:
            cache = seen = cache.write(jnp.arange(x_BxTxE.shape[0]), positions_BxT, keys, values)
        else:
            cache = cache.write(rows_B, positions_BxT, keys, values)
            seen = cache.rows(rows_B)
        attended = attend(queries, seen.keys_BxKxDxS, seen.values_BxKxSxD, mask_BxTxS)
        out = self.weight("out_kernel", init, (c.heads, c.head_dim, c.hidden), ("heads", "head_dim", "embed"))
        return jnp.einsum("bthd,hde->bte", attended, out), cache


class SwiGLU(_Module):
    """Gated feed-forward block (Shazeer 2020)."""

    @nn.compact
    def __call__(self, x_BxTxE):
        c = self.config
        init = nn.initializers.normal(0.02)
        gate = self.weight("gate_kernel", init, (c.hidden, c.mlp), ("embed", "mlp"))
        up = self.weight("up_kernel", init, (c.hidden, c.mlp), ("embed", "mlp"))
        down = self.weight("down_kernel", init, (c.mlp, c.hidden), ("mlp", "embed"))
        return (jax.nn.silu(x_BxTxE @ gate) * (x_BxTxE @ up)) @ down


class DecoderLayer(_Module):
    """One pre-norm transformer layer."""

    @nn.compact
    def __call__(self, x_BxTxE, positions_BxT, mask_BxTxS, cache, rows_B):
        def part(module, name):
            return module(self.config, self.dtype, name=name)

        attended, cache = part(Attention, "attention")(
            part(RMSNorm, "attention_norm")(x_BxTxE), positions_BxT, mask_BxTxS, cache, rows_B
        )
        x_BxTxE = x_BxTxE + attended
        return x_BxTxE + part(SwiGLU, "mlp")(part(RMSNorm, "mlp_norm")(x_BxTxE)), cache


class Decoder(_Module):
    """Tokens in, hidden states out; the unembedding is `unembed`, apart.

    With `scan` the layers' parameters are stacked under `layers` with a leading axis; without, they are
    `layer_0`, `layer_1`, ...: see `unstack_layers`.
    """

    scan: bool = True

    @nn.compact
    def __call__(self, tokens_BxT, positions_BxT, segment_ids_BxT=None, cache=None, rows_B=None):
        """One forward for training, prefill, decode and extend.

        Args:
          tokens_BxT: int32 ids.
          positions_BxT: int32; with a cache, a position at or beyond its length is not written.
          segment_ids_BxT: without a cache: a token sees earlier tokens of its own segment.
          cache: one LayerCache a layer (`scan=False` only): a token sees positions up to its own.
          rows_B: the cache rows that the batch's rows stand for; None if they are all, in order.

        Returns:
          (hidden_BxTxE after the final norm, cache).
        """
        c = self.config
        embedding = self.weight(
            "embedding", nn.initializers.normal(0.02), (c.vocab_size, c.hidden), ("vocab", "embed")
        )
        x_BxTxE = nn.with_logical_constraint(embedding[tokens_BxT], ("batch", "length", "activation"))
        if cache is None:
            order = jnp.arange(tokens_BxT.shape[1])
            mask_BxTxS = jnp.broadcast_to(order[:, None] >= order, (*tokens_BxT.shape, len(order)))
            if segment_ids_BxT is not None:
                mask_BxTxS &= segment_ids_BxT[:, :, None] == segment_ids_BxT[:, None, :]
        else:
            mask_BxTxS = jnp.arange(cache[0].length) <= positions_BxT[:, :, None]
        if self.scan:
            scanned = nn.scan(
                DecoderLayer,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                in_axes=nn.broadcast,
                length=c.layers,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            x_BxTxE, _ = scanned(c, self.dtype, name="layers")(x_BxTxE, positions_BxT, mask_BxTxS, None, None)
        else:
            layers = []
            for i in range(c.layers):
                layer = DecoderLayer(c, self.dtype, name=f"layer_{i}")
                layer_cache = None if cache is None else cache[i]
                x_BxTxE, layer_cache = layer(x_BxTxE, positions_BxT, mask_BxTxS, layer_cache, rows_B)
                layers.append(layer_cache)
            cache = None if cache is None else tuple(layers)
        if not c.tied_embeddings:
            self.weight(
                "unembedding", nn.initializers.normal(0.02), (c.vocab_size, c.hidden), ("vocab", "embed")
            )
        return RMSNorm(c, self.dtype, name="final_norm")(x_BxTxE), cache


def unembed(params, hidden_NxE):
    """Float32 logits_NxV of hidden states of any leading shape."""
    table_VxE = params.get("unembedding", params["embedding"])
    return jnp.einsum(
        "...e,ve->...v", hidden_NxE, table_VxE.astype(hidden_NxE.dtype), preferred_element_type=jnp.float32
    )


def unstack_layers(params):
    """Parameters of the scanned decoder -> those of the unrolled one."""
    layers = params["layers"]
    depth = jax.tree.leaves(layers)[0].shape[0]
    rest = {name: value for name, value in params.items() if name != "layers"}
    return rest | {f"layer_{i}": jax.tree.map(lambda x, i=i: x[i], layers) for i in range(depth)}


def abstract_params(config: ModelConfig):
    """(shapes, logical axis names) of the scanned decoder's parameters, without making any."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    boxed = jax.eval_shape(lambda: Decoder(config).init(jax.random.key(0), tokens, tokens))["params"]
    shapes = jax.tree.map(lambda box: box.value, boxed, is_leaf=lambda x: isinstance(x, nn.Partitioned))
    axes = jax.tree.map(lambda box: box.names, boxed, is_leaf=lambda x: isinstance(x, nn.Partitioned))
    return shapes, axes


def forward(config: ModelConfig, params, tokens_BxT, positions_BxT, *, dtype=jnp.float32, **kwargs):
    """`Decoder` on plain parameters, stacked or not (told by their names)."""
    decoder = Decoder(config, dtype, scan="layers" in params)
    return decoder.apply({"params": params}, tokens_BxT, positions_BxT, **kwargs)
