"""Attention over packed rows by plain XLA operations, with the backward pass written out.

What is kept for it is the softmax alone. Products that sum over queries are `transposed_product`s.
"""

import jax
import jax.numpy as jnp

from taorl_jax.models.linear import transposed_product

MASKED = -1e30
# Longest row whose [T, T] scores are built at once; longer ones go by blocks of so many queries.
QUERY_BLOCK = 512


def xla_attention(queries_BxTxHxD, keys_BxTxKxD, values_BxTxKxD, segment_ids_BxT):
    """See `attention.packed_attention`."""
    B, T, H, D = queries_BxTxHxD.shape
    K = keys_BxTxKxD.shape[2]
    queries_BxKxGxTxD = queries_BxTxHxD.reshape(B, T, K, H // K, D).transpose(0, 2, 3, 1, 4)
    keys, values = keys_BxTxKxD.transpose(0, 2, 1, 3), values_BxTxKxD.transpose(0, 2, 1, 3)
    order = jnp.arange(T)

    def block(queries_BxKxGxQxD, rows_Q, segments_BxQ):
        mask_BxQxT = (rows_Q[:, None] >= order) & (segments_BxQ[:, :, None] == segment_ids_BxT[:, None, :])
        return attend(queries_BxKxGxQxD * D**-0.5, keys, values, mask_BxQxT)

    if T <= QUERY_BLOCK:
        attended_BxKxGxTxD = block(queries_BxKxGxTxD, order, segment_ids_BxT)
    else:
        # Rematerialised, so that the scores of one block live at a time in the backward pass as well.
        pieces = (_split(queries_BxKxGxTxD, 3), _split(order, 0), _split(segment_ids_BxT, 1))
        attended = jax.lax.map(jax.checkpoint(lambda piece: block(*piece)), pieces)
        attended_BxKxGxTxD = jnp.moveaxis(attended, 0, 3).reshape(B, K, H // K, -1, D)[:, :, :, :T]
    return attended_BxKxGxTxD.transpose(0, 3, 1, 2, 4).reshape(B, T, H, D)


def _split(x, axis):
    """Cuts an axis into blocks of queries, which become the leading axis."""
    blocks = -(-x.shape[axis] // QUERY_BLOCK)
    padding = blocks * QUERY_BLOCK - x.shape[axis]
    x = jnp.pad(x, [(0, padding if i == axis else 0) for i in range(x.ndim)])
    shape = (*x.shape[:axis], blocks, QUERY_BLOCK, *x.shape[axis + 1 :])
    return jnp.moveaxis(x.reshape(shape), axis, 0)


@jax.custom_vjp
def attend(queries_BxKxGxQxD, keys_BxKxSxD, values_BxKxSxD, mask_BxQxS):
    """Softmax attention of scaled queries, [B, K, G, Q, D]; one that sees nothing gets a finite average."""
    return _attend_forward(queries_BxKxGxQxD, keys_BxKxSxD, values_BxKxSxD, mask_BxQxS)[0]


def _attend_forward(queries_BxKxGxQxD, keys_BxKxSxD, values_BxKxSxD, mask_BxQxS):
    scores_BxKxGxQxS = jnp.einsum(
        "bkgqd,bksd->bkgqs", queries_BxKxGxQxD, keys_BxKxSxD, preferred_element_type=jnp.float32
    )
    scores_BxKxGxQxS = jnp.where(mask_BxQxS[:, None, None], scores_BxKxGxQxS, MASKED)
    weights = jax.nn.softmax(scores_BxKxGxQxS, axis=-1).astype(values_BxKxSxD.dtype)
    attended = jnp.einsum("bkgqs,bksd->bkgqd", weights, values_BxKxSxD)
    return attended, (queries_BxKxGxQxD, keys_BxKxSxD, values_BxKxSxD, weights, attended)


def _attend_backward(residuals, grad_BxKxGxQxD):
    queries, keys, values, weights_BxKxGxQxS, attended = residuals
    B, K, G, Q, _ = queries.shape

    def over_queries(x):
        return x.reshape(B, K, G * Q, x.shape[-1])

    inner_BxKxGxQx1 = jnp.sum((grad_BxKxGxQxD * attended).astype(jnp.float32), axis=-1, keepdims=True)
    weight_grads = jnp.einsum("bkgqd,bksd->bkgqs", grad_BxKxGxQxD, values, preferred_element_type=jnp.float32)
    score_grads = (weights_BxKxGxQxS * (weight_grads - inner_BxKxGxQx1)).astype(queries.dtype)
    query_grads = jnp.einsum("bkgqs,bksd->bkgqd", score_grads, keys)
    key_grads_BxKxDxS = transposed_product(over_queries(queries), over_queries(score_grads))
    value_grads_BxKxDxS = transposed_product(over_queries(grad_BxKxGxQxD), over_queries(weights_BxKxGxQxS))
    key_grads, value_grads = (
        x.swapaxes(-1, -2).astype(keys.dtype) for x in (key_grads_BxKxDxS, value_grads_BxKxDxS)
    )
    return query_grads, key_grads, value_grads, None


attend.defvjp(_attend_forward, _attend_backward)
