"""Log-probs and entropies of taken tokens, by chunks: no [tokens, vocabulary] array ever exists.

Each device handles its own rows and its own part of the vocabulary. The wanted tokens of its rows are moved
to the front, and as many chunks run as hold one, so cost follows the tokens that enter the loss. The
unembedding is gathered over its sharded embedding axis once before the chunks, and its gradient scattered
once after them. Forward keeps the log-normalisers; backward builds each chunk's logits again.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from taorl_jax.models.linear import transposed_product


@dataclasses.dataclass(frozen=True)
class HeadAxes:
    """Mesh axes that rows, vocabulary and embedding are spread over; empty without a mesh."""

    rows: tuple[str, ...] = ()
    vocab: tuple[str, ...] = ()
    embed: tuple[str, ...] = ()

    @classmethod
    def of_context(cls) -> "HeadAxes":
        """By the mesh and the logical axis rules that are in force.

        Raises:
          ValueError: the embedding is sharded over axes that rows are not spread over.
        """
        if jax.sharding.get_abstract_mesh().empty:
            return cls()
        axes = (nn.logical_to_mesh_axes((name,))[0] for name in ("batch", "vocab", "embed"))
        rows, vocab, embed = ((x,) if isinstance(x, str) else tuple(x or ()) for x in axes)
        if not set(embed) <= set(rows):
            raise ValueError(f"mesh rules: 'embed' ({embed}) must lie within the axes of 'batch' ({rows})")
        return cls(rows, vocab, embed)

    def run(self, function, in_specs, out_specs, *arguments):
        """`function` on every device's shards."""
        if not self.rows:
            return function(*arguments)
        mapped = jax.shard_map(function, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return mapped(*arguments)


def token_logprobs(params, hidden_BxTxE, tokens_BxT, wanted_BxT, temperature: float, chunk: int):
    """Log-prob of every wanted token given those before it, and the entropy of what it was drawn from.

    Args:
      params: with `unembedding`, or `embedding` where they are tied: [V, E].
      hidden_BxTxE: of all positions; the token at t is predicted from t - 1.
      tokens_BxT: int32.
      wanted_BxT: bool; never at t = 0.
      temperature: T of softmax(logits / T).
      chunk: tokens whose logits exist at a time.

    Returns:
      (logprobs_BxT, entropies_BxT), float32, nats; 0 where not wanted.
    """
    table_VxE = params.get("unembedding", params["embedding"])
    targets, wanted = jnp.roll(tokens_BxT, -1, axis=1), jnp.roll(wanted_BxT, -1, axis=1)
    wanted = wanted.at[:, -1].set(False)
    values = _head(HeadAxes.of_context(), temperature, chunk, hidden_BxTxE, table_VxE, targets, wanted)
    return tuple(jnp.pad(x_BxT[:, :-1], ((0, 0), (1, 0))) for x_BxT in values)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _head(axes: HeadAxes, temperature, chunk, hidden_BxTxE, table_VxE, targets_BxT, wanted_BxT):
    return _head_forward(axes, temperature, chunk, hidden_BxTxE, table_VxE, targets_BxT, wanted_BxT)[0]


def _specs(axes):
    rows = PartitionSpec(axes.rows or None)
    return rows, PartitionSpec(axes.vocab or None, axes.embed or None)


def _head_forward(axes, temperature, chunk, hidden_BxTxE, table_VxE, targets_BxT, wanted_BxT):
    rows, table = _specs(axes)
    local = functools.partial(_forward_shard, axes, temperature, chunk)
    logprobs, entropies, normalisers = axes.run(
        local, (rows, table, rows, rows), (rows, rows, rows), hidden_BxTxE, table_VxE, targets_BxT, wanted_BxT
    )
    residuals = (hidden_BxTxE, table_VxE, targets_BxT, wanted_BxT, entropies, normalisers)
    return (logprobs, entropies), residuals


def _head_backward(axes, temperature, chunk, residuals, cotangents):
    rows, table = _specs(axes)
    local = functools.partial(_backward_shard, axes, temperature, chunk)
    in_specs = (rows, table, *(rows,) * 6)
    grads = axes.run(local, in_specs, (rows, table), *residuals, *cotangents)
    return (*grads, None, None)


_head.defvjp(_head_forward, _head_backward)


class _Chunks:
    """The wanted tokens of a device's rows, moved to the front and cut into chunks."""

    def __init__(self, axes, chunk, wanted_N):
        N = wanted_N.size
        self.size = min(chunk, N)
        padded = -(-N // self.size) * self.size
        (self.index_P,) = jnp.nonzero(wanted_N, size=padded, fill_value=N)
        # The same on every device: a chunk's collectives need all of them.
        count = jnp.sum(wanted_N, dtype=jnp.int32)
        self.count = lax.pmax(count, axes.rows) if axes.rows else count

    def run(self, body, carry):
        """`body(index_C, carry)` over as many chunks as hold a wanted token."""
        trips = (self.count + self.size - 1) // self.size

        def step(i, carry):
            return body(lax.dynamic_slice_in_dim(self.index_P, i * self.size, self.size), carry)

        return lax.fori_loop(0, trips, step, carry)


def _take(array_N, index_C):
    return array_N.at[index_C].get(mode="fill", fill_value=0)


def _sum(axes, x):
    return lax.psum(x, axes.vocab) if axes.vocab else x


def _gathered(axes, table_VxE, dtype):
    """The whole embedding axis of a device's part of the vocabulary, in the compute type."""
    table_VxE = table_VxE.astype(dtype)
    return lax.all_gather(table_VxE, axes.embed, axis=1, tiled=True) if axes.embed else table_VxE


def _is_target(axes, targets_C, vocabulary):
    """[C, V] bool: the taken token, if it is in this device's part of the vocabulary."""
    first = lax.axis_index(axes.vocab) * vocabulary if axes.vocab else 0
    return jnp.arange(vocabulary) == (targets_C - first)[:, None]


def _logits(temperature, hidden_CxE, table_VxE):
    logits = jnp.einsum("ce,ve->cv", hidden_CxE, table_VxE, preferred_element_type=jnp.float32)
    return logits if temperature == 1.0 else logits / temperature


def _forward_shard(axes, temperature, chunk, hidden_BxTxE, table_VxE, targets_BxT, wanted_BxT):
    """(logprobs, entropies, log-normalisers), each [B, T], of one device's rows."""
    hidden_NxE = hidden_BxTxE.reshape(-1, hidden_BxTxE.shape[-1])
    targets_N = targets_BxT.reshape(-1)
    table_VxE = _gathered(axes, table_VxE, hidden_BxTxE.dtype)

    def body(index_C, out):
        logits_CxV = _logits(temperature, _take(hidden_NxE, index_C), table_VxE)
        highest_C = logits_CxV.max(axis=1)
        highest_C = lax.pmax(highest_C, axes.vocab) if axes.vocab else highest_C
        shifted_CxV = logits_CxV - highest_C[:, None]
        is_target_CxV = _is_target(axes, _take(targets_N, index_C), logits_CxV.shape[1])
        weights_CxV = jnp.exp(shifted_CxV)
        total_C, weighted_C, target_C = _sum(
            axes,
            jnp.stack(
                [
                    weights_CxV.sum(axis=1),
                    (weights_CxV * shifted_CxV).sum(axis=1),
                    jnp.where(is_target_CxV, shifted_CxV, 0.0).sum(axis=1),
                ]
            ),
        )
        log_total_C = jnp.log(total_C)
        values = (target_C - log_total_C, log_total_C - weighted_C / total_C, log_total_C + highest_C)
        return tuple(x.at[index_C].set(value, mode="drop") for x, value in zip(out, values, strict=True))

    zeros_N = jnp.zeros(targets_N.shape, jnp.float32)
    out = _Chunks(axes, chunk, wanted_BxT.reshape(-1)).run(body, (zeros_N, zeros_N, zeros_N))
    return tuple(x.reshape(targets_BxT.shape) for x in out)


def _backward_shard(
    axes,
    temperature,
    chunk,
    hidden_BxTxE,
    table_VxE,
    targets_BxT,
    wanted_BxT,
    entropies_BxT,
    normalisers_BxT,
    logprob_grads_BxT,
    entropy_grads_BxT,
):
    """Gradients of (hidden, table): d logp / d l_v = 1[taken] - p_v, d H / d l_v = -p_v (log p_v + H)."""
    hidden_NxE = hidden_BxTxE.reshape(-1, hidden_BxTxE.shape[-1])
    flat = [x.reshape(-1) for x in (targets_BxT, entropies_BxT, normalisers_BxT)]
    grads_N = [x.reshape(-1) / temperature for x in (logprob_grads_BxT, entropy_grads_BxT)]
    gathered_VxE = _gathered(axes, table_VxE, hidden_BxTxE.dtype)

    def body(index_C, carry):
        hidden_grads_NxE, table_grads_ExV = carry
        hidden_CxE = _take(hidden_NxE, index_C)
        targets_C, entropies_C, normalisers_C = (_take(x, index_C) for x in flat)
        logprob_grads_C, entropy_grads_C = (_take(x, index_C)[:, None] for x in grads_N)
        logprobs_CxV = _logits(temperature, hidden_CxE, gathered_VxE) - normalisers_C[:, None]
        is_target_CxV = _is_target(axes, targets_C, logprobs_CxV.shape[1])
        slope_CxV = logprob_grads_C + entropy_grads_C * (logprobs_CxV + entropies_C[:, None])
        logit_grads_CxV = jnp.where(is_target_CxV, logprob_grads_C, 0.0) - jnp.exp(logprobs_CxV) * slope_CxV
        logit_grads_CxV = logit_grads_CxV.astype(hidden_CxE.dtype)
        hidden_grads_CxE = jnp.einsum(
            "cv,ve->ce", logit_grads_CxV, gathered_VxE, preferred_element_type=jnp.float32
        )
        table_grads_ExV += transposed_product(hidden_CxE, logit_grads_CxV)
        return hidden_grads_NxE.at[index_C].set(hidden_grads_CxE, mode="drop"), table_grads_ExV

    carry = (jnp.zeros(hidden_NxE.shape, jnp.float32), jnp.zeros(gathered_VxE.shape[::-1], jnp.float32))
    chunks = _Chunks(axes, chunk, wanted_BxT.reshape(-1))
    hidden_grads_NxE, table_grads_ExV = chunks.run(body, carry)
    hidden_grads = _sum(axes, hidden_grads_NxE).reshape(hidden_BxTxE.shape).astype(hidden_BxTxE.dtype)
    if axes.embed:
        table_grads_ExV = lax.psum_scatter(table_grads_ExV, axes.embed, scatter_dimension=0, tiled=True)
    rest = tuple(name for name in axes.rows if name not in axes.embed)
    table_grads_ExV = lax.psum(table_grads_ExV, rest) if rest else table_grads_ExV
    return hidden_grads, table_grads_ExV.T.astype(table_VxE.dtype)
