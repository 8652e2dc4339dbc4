"""Attention: over packed rows in training (three backends), and over a cache in the sampler (XLA).

All forms are grouped-query, causal, and have their softmax in float32. The backends of training agree up to
rounding; "auto" takes splash on TPU, cuDNN on GPU (where the compute type is bfloat16) and XLA elsewhere.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from taorl_jax.errors import UserError
from taorl_jax.models.kv_cache import LayerCache
from taorl_jax.models.xla_attention import MASKED, xla_attention

BACKENDS = ("xla", "splash", "cudnn")


def choose_backend(setting: str, platform: str, dtype) -> str:
    """The backend of `policy.attention` on a platform ("cpu", "tpu", "gpu" or "cuda").

    Raises:
      UserError: there is no such backend, or it can't run there.
    """
    on_gpu = platform in ("gpu", "cuda")
    if setting == "auto":
        if platform == "tpu":
            return "splash"
        return "cudnn" if on_gpu and dtype == jnp.bfloat16 else "xla"
    if setting not in BACKENDS:
        raise UserError(f"policy.attention={setting!r}; use 'auto' or one of {BACKENDS}")
    needed = {"xla": True, "splash": platform == "tpu", "cudnn": on_gpu and dtype == jnp.bfloat16}
    if not needed[setting]:
        raise UserError(
            f"policy.attention={setting!r} can't run on {platform} in {jnp.dtype(dtype).name} (splash needs "
            "a TPU, cudnn a GPU and bfloat16); use 'auto'"
        )
    return setting


def packed_attention(queries_BxTxHxD, keys_BxTxKxD, values_BxTxKxD, segment_ids_BxT, backend: str):
    """A token attends to the tokens of its own segment up to itself; returns [B, T, H, D].

    Args:
      queries_BxTxHxD: already rotated.
      keys_BxTxKxD: of the same type; H is a multiple of K.
      values_BxTxKxD: as the keys.
      segment_ids_BxT: int32; None: a row is one segment.
      backend: one of BACKENDS.
    """
    if segment_ids_BxT is None:
        segment_ids_BxT = jnp.ones(queries_BxTxHxD.shape[:2], jnp.int32)
    functions = {"xla": xla_attention, "splash": _splash_attention, "cudnn": _cudnn_attention}
    return functions[backend](queries_BxTxHxD, keys_BxTxKxD, values_BxTxKxD, segment_ids_BxT)


def cached_attention(queries_BxTxHxD, cache: LayerCache, positions_BxT):
    """A token at position p attends to the cache's positions 0 to p; returns [B, T, H, D].

    Sums over positions are made block by block, and then over blocks in pairs: empty blocks at the end add
    zeros to whole partial sums, so the result has the same bits whatever the number of blocks.
    """
    B, T, H, D = queries_BxTxHxD.shape
    keys, values = cache.keys_BxKxNxDxP, cache.values_BxKxNxPxD
    K, N, P = values.shape[1:4]
    queries_BxKxGxTxD = (queries_BxTxHxD.reshape(B, T, K, H // K, D) * D**-0.5).transpose(0, 2, 3, 1, 4)
    # A product a block: were N an axis of the keys alone, XLA would copy them to bring it elsewhere.
    queries = jnp.broadcast_to(queries_BxKxGxTxD[:, :, None], (B, K, N, H // K, T, D))
    scores_BxKxNxGxTxP = jnp.einsum("bkngtd,bkndp->bkngtp", queries, keys, preferred_element_type=jnp.float32)
    order_NxP = jnp.arange(N * P).reshape(N, P)
    mask_BxNxTxP = order_NxP[None, :, None] <= positions_BxT[:, None, :, None]
    scores_BxKxNxGxTxP = jnp.where(mask_BxNxTxP[:, None, :, None], scores_BxKxNxGxTxP, MASKED)
    top = jnp.max(scores_BxKxNxGxTxP, axis=(2, 5), keepdims=True)
    weights_BxKxNxGxTxP = jnp.exp(scores_BxKxNxGxTxP - top)
    totals_BxKxGxT = _sum_in_pairs(jnp.sum(weights_BxKxNxGxTxP, axis=-1))
    attended_BxKxGxTxD = _sum_in_pairs(
        jnp.einsum(
            "bkngtp,bknpd->bkngtd",
            weights_BxKxNxGxTxP.astype(values.dtype),
            values,
            preferred_element_type=jnp.float32,
        )
    )
    attended_BxKxGxTxD = (attended_BxKxGxTxD / totals_BxKxGxT[..., None]).astype(queries_BxTxHxD.dtype)
    return attended_BxKxGxTxD.transpose(0, 3, 1, 2, 4).reshape(B, T, H, D)


def _sum_in_pairs(x_BxKxNx):
    """Sums over axis 2 as a binary tree over the next power of two: zeros at the end change no bit."""
    while (count := x_BxKxNx.shape[2]) > 1:
        half = 1 << ((count - 1).bit_length() - 1)
        rest = [(0, 2 * half - count if axis == 2 else 0) for axis in range(x_BxKxNx.ndim)]
        x_BxKxNx = x_BxKxNx[:, :, :half] + jnp.pad(x_BxKxNx[:, :, half:], rest)
    return x_BxKxNx[:, :, 0]


def _cudnn_attention(queries_BxTxHxD, keys_BxTxKxD, values_BxTxKxD, segment_ids_BxT):
    same_BxTxT = segment_ids_BxT[:, :, None] == segment_ids_BxT[:, None, :]
    return jax.nn.dot_product_attention(
        queries_BxTxHxD,
        keys_BxTxKxD,
        values_BxTxKxD,
        mask=same_BxTxT[:, None],
        is_causal=True,
        implementation="cudnn",
    )


def _splash_attention(queries_BxTxHxD, keys_BxTxKxD, values_BxTxKxD, segment_ids_BxT):
    """Each device runs the kernel over its own rows and heads (a kernel can't be partitioned by XLA)."""
    H, K = queries_BxTxHxD.shape[2], keys_BxTxKxD.shape[2]
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return splash_rows(queries_BxTxHxD, keys_BxTxKxD, values_BxTxKxD, segment_ids_BxT)
    heads_axis = nn.logical_to_mesh_axes(("heads",))[0]
    if nn.logical_to_mesh_axes(("kv_heads",))[0] != heads_axis:
        # Replicated KV heads: each device needs those of its own query heads only.
        keys_BxTxKxD, values_BxTxKxD = (jnp.repeat(x, H // K, axis=2) for x in (keys_BxTxKxD, values_BxTxKxD))
    rows_axis = nn.logical_to_mesh_axes(("batch",))[0]
    heads, rows = PartitionSpec(rows_axis, None, heads_axis), PartitionSpec(rows_axis)
    return jax.shard_map(splash_rows, in_specs=(heads, heads, heads, rows), out_specs=heads, check_vma=False)(
        queries_BxTxHxD, keys_BxTxKxD, values_BxTxKxD, segment_ids_BxT
    )


def splash_rows(queries_BxTxHxD, keys_BxTxKxD, values_BxTxKxD, segment_ids_BxT, interpret: bool = False):
    """The splash kernel over the rows of one device; `interpret` runs it without a TPU, slowly."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    T, H, D = queries_BxTxHxD.shape[1:]
    block = next((size for size in (512, 256, 128) if T % size == 0), None)
    if block is None:
        raise UserError(f"splash attention needs rows of a multiple of 128 tokens, not {T}: train.row_tokens")
    kernel = splash.make_splash_mha(
        splash.MultiHeadMask([splash.CausalMask((T, T))] * H),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=splash.BlockSizes(
            block_q=block, block_kv=block, block_kv_compute=block,
            block_q_dkv=block, block_kv_dkv=block, block_kv_dkv_compute=block,
            block_q_dq=block, block_kv_dq=block,
        ),
        interpret=interpret,
    )  # fmt: skip

    @functools.partial(jax.vmap, in_axes=(0, 0, 0, 0))
    def row(queries_TxHxD, keys_TxKxD, values_TxKxD, segment_ids_T):
        by_head = (x.transpose(1, 0, 2) for x in (queries_TxHxD * D**-0.5, keys_TxKxD, values_TxKxD))
        segments = splash.SegmentIds(segment_ids_T, segment_ids_T)
        return kernel(*by_head, segment_ids=segments).transpose(1, 0, 2)

    return row(queries_BxTxHxD, keys_BxTxKxD, values_BxTxKxD, segment_ids_BxT)
