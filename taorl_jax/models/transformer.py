"""The policy: a pure decoder, one definition of the layer for training, prefill and decoding.

RMSNorm before each block, rotary positions, grouped-query attention, SwiGLU; what tells Qwen2, Qwen3 and
Llama apart is data of the ModelConfig. Training scans the stacked layers, so that one layer is compiled
whatever the depth; decoding unrolls them over one cache array a layer. Parameters are a plain pytree,
float32 or as loaded; norms, rotary embedding and softmax are computed in float32 whatever the compute type.
"""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from taorl_jax.models.attention import cached_attention, packed_attention
from taorl_jax.models.kv_cache import LayerCache
from taorl_jax.models.linear import project
from taorl_jax.models.model_config import ModelConfig

# What a layer keeps for its backward pass, by `train.remat`.
REMAT_POLICIES = {
    "none": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def rotary_frequencies(config: ModelConfig):
    """[head_dim / 2] float32, radians a position (Su et al. 2021; scalings as in Hugging Face)."""
    half, scaling = config.head_dim // 2, config.rope_scaling
    frequency_F = config.rope_theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    if scaling is None:
        return frequency_F
    if scaling.kind == "linear":
        return frequency_F / scaling.factor
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    turns_F = scaling.original_positions * frequency_F / (2 * math.pi)
    kept_F = jnp.clip((turns_F - low) / (high - low), 0.0, 1.0)
    return frequency_F * (kept_F + (1 - kept_F) / scaling.factor)


def rotate(x_BxTxHxD, positions_BxT, frequency_F):
    """Rotary position embedding in the half-split layout of Hugging Face."""
    angle_BxTx1xF = positions_BxT[:, :, None, None].astype(jnp.float32) * frequency_F
    cos, sin = jnp.cos(angle_BxTx1xF), jnp.sin(angle_BxTx1xF)
    # Halves as an axis of two that is flipped: no pieces to put together again, which is slow on CPU.
    halves = x_BxTxHxD.astype(jnp.float32).reshape(*x_BxTxHxD.shape[:-1], 2, -1)
    sign_2x1 = jnp.array([[-1.0], [1.0]])
    rotated = halves * cos[..., None, :] + jnp.flip(halves, axis=-2) * sign_2x1 * sin[..., None, :]
    rotated = rotated.reshape(x_BxTxHxD.shape)
    return rotated.astype(x_BxTxHxD.dtype)


class _Module(nn.Module):
    config: ModelConfig
    dtype: Any = jnp.float32
    attention: str = "xla"

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
    def __call__(self, x_BxTxE, positions_BxT, segment_ids_BxT, cache: LayerCache | None, rows_B):
        c = self.config
        init = nn.initializers.normal(0.02)

        def heads_of(name, heads, axis):
            shape = (c.hidden, heads, c.head_dim)
            kernel = self.weight(f"{name}_kernel", init, shape, ("embed", axis, "head_dim"))
            projected = project(x_BxTxE, kernel, outputs=2)
            if c.qkv_bias:
                projected += self.weight(f"{name}_bias", nn.initializers.zeros, shape[1:], (axis, "head_dim"))
            return projected

        def positioned(name, x_BxTxHxD):
            if c.query_key_norm:
                x_BxTxHxD = RMSNorm(c, self.dtype, name=f"{name}_norm")(x_BxTxHxD)
            return rotate(x_BxTxHxD, positions_BxT, rotary_frequencies(c))

        queries = positioned("query", heads_of("query", c.heads, "heads"))
        keys = positioned("key", heads_of("key", c.kv_heads, "kv_heads"))
        values = heads_of("value", c.kv_heads, "kv_heads")
        if cache is None:
            attended = packed_attention(queries, keys, values, segment_ids_BxT, self.attention)
        else:
            rows = jnp.arange(x_BxTxE.shape[0]) if rows_B is None else rows_B
            cache = cache.write(rows, positions_BxT, keys, values)
            seen = cache if rows_B is None else cache.rows(rows_B)
            attended = cached_attention(queries, seen, positions_BxT)
        out = self.weight("out_kernel", init, (c.heads, c.head_dim, c.hidden), ("heads", "head_dim", "embed"))
        out_BxTxE = project(attended, out)
        if c.out_bias:
            out_BxTxE += self.weight("out_bias", nn.initializers.zeros, (c.hidden,), ("norm",))
        return out_BxTxE, cache


class SwiGLU(_Module):
    """Gated feed-forward block (Shazeer 2020)."""

    @nn.compact
    def __call__(self, x_BxTxE):
        c = self.config

        def dense(name, x, inputs, outputs, axes):
            kernel = self.weight(f"{name}_kernel", nn.initializers.normal(0.02), (inputs, outputs), axes)
            projected = project(x, kernel)
            if c.mlp_bias:
                bias_axis = "norm" if axes[1] == "embed" else axes[1]
                projected += self.weight(f"{name}_bias", nn.initializers.zeros, (outputs,), (bias_axis,))
            return projected

        gate = dense("gate", x_BxTxE, c.hidden, c.mlp, ("embed", "mlp"))
        up = dense("up", x_BxTxE, c.hidden, c.mlp, ("embed", "mlp"))
        return dense("down", jax.nn.silu(gate) * up, c.mlp, c.hidden, ("mlp", "embed"))


class DecoderLayer(_Module):
    """One pre-norm transformer layer."""

    @nn.compact
    def __call__(self, x_BxTxE, positions_BxT, segment_ids_BxT, cache, rows_B):
        def part(module, name):
            return module(self.config, self.dtype, self.attention, name=name)

        attended, cache = part(Attention, "attention")(
            part(RMSNorm, "attention_norm")(x_BxTxE), positions_BxT, segment_ids_BxT, cache, rows_B
        )
        x_BxTxE = x_BxTxE + attended
        return x_BxTxE + part(SwiGLU, "mlp")(part(RMSNorm, "mlp_norm")(x_BxTxE)), cache


class Decoder(_Module):
    """Tokens in, hidden states out; the unembedding is `unembed`, apart.

    With `scan` the layers' parameters are stacked under `layers` with a leading axis; without, they are
    `layer_0`, `layer_1`, ...: see `unstack_layers`.

    Attributes:
      attention: backend of `packed_attention`, for forwards without a cache.
      remat: what a scanned layer keeps for its backward pass, a key of REMAT_POLICIES.
      unroll: whether the scan over layers is unrolled: slower to compile, faster to run on CPU.
    """

    scan: bool = True
    remat: str = "none"
    unroll: bool = False

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
        if self.scan:
            x_BxTxE = self._scanned(x_BxTxE, positions_BxT, segment_ids_BxT)
        else:
            layers = []
            for i in range(c.layers):
                layer = DecoderLayer(c, self.dtype, self.attention, name=f"layer_{i}")
                layer_cache = None if cache is None else cache[i]
                x_BxTxE, layer_cache = layer(x_BxTxE, positions_BxT, segment_ids_BxT, layer_cache, rows_B)
                layers.append(layer_cache)
            cache = None if cache is None else tuple(layers)
        if not c.tied_embeddings:
            self.weight(
                "unembedding", nn.initializers.normal(0.02), (c.vocab_size, c.hidden), ("vocab", "embed")
            )
        return RMSNorm(c, self.dtype, name="final_norm")(x_BxTxE), cache

    def _scanned(self, x_BxTxE, positions_BxT, segment_ids_BxT):
        layer = DecoderLayer
        if self.remat != "none":
            layer = nn.remat(layer, policy=REMAT_POLICIES[self.remat], prevent_cse=self.unroll)
        scanned = nn.scan(
            layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,
            length=self.config.layers,
            unroll=self.config.layers if self.unroll else 1,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        layers = scanned(self.config, self.dtype, self.attention, name="layers")
        return layers(x_BxTxE, positions_BxT, segment_ids_BxT, None, None)[0]


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


def forward(
    config: ModelConfig,
    params,
    tokens_BxT,
    positions_BxT,
    *,
    dtype=jnp.float32,
    attention: str = "xla",
    remat: str = "none",
    unroll: bool = False,
    **kwargs,
):
    """`Decoder` on plain parameters, stacked or not (told by their names); see there for the arguments."""
    decoder = Decoder(config, dtype, attention, scan="layers" in params, remat=remat, unroll=unroll)
    return decoder.apply({"params": params}, tokens_BxT, positions_BxT, **kwargs)
