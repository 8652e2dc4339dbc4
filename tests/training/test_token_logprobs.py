"""The chunked head against whole logits, in values, gradients and memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taorl_jax.training.token_logprobs import token_logprobs

B, T, E, V = 3, 11, 8, 37


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    params = {"embedding": jnp.asarray(rng.normal(size=(V, E)), jnp.float32)}
    hidden = jnp.asarray(rng.normal(size=(B, T, E)), jnp.float32)
    tokens = jnp.asarray(rng.integers(0, V, (B, T)))
    wanted = jnp.asarray(rng.random((B, T)) < 0.5).at[:, 0].set(False)
    return params, hidden, tokens, wanted


def whole_logits(params, hidden, tokens, wanted, temperature):
    logits = jnp.einsum("bte,ve->btv", hidden[:, :-1], params["embedding"]) / temperature
    logprobs = jax.nn.log_softmax(logits)
    taken = jnp.take_along_axis(logprobs, tokens[:, 1:, None], axis=-1)[..., 0]
    entropies = -(jnp.exp(logprobs) * logprobs).sum(-1)
    return tuple(jnp.pad(x * wanted[:, 1:], ((0, 0), (1, 0))) for x in (taken, entropies))


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
@pytest.mark.parametrize("chunk", [1, 4, 512])
def test_values_and_gradients_equal_those_of_whole_logits(inputs, chunk, temperature):
    params, hidden, tokens, wanted = inputs
    rng = np.random.default_rng(1)
    slopes = jnp.asarray(rng.normal(size=(2, B, T)), jnp.float32)

    def run(function):
        def total(params, hidden):
            values = function(params, hidden)
            return sum((slope * value).sum() for slope, value in zip(slopes, values, strict=True)), values

        return jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(params, hidden)

    (_, got), got_grads = run(lambda p, h: token_logprobs(p, h, tokens, wanted, temperature, chunk))
    (_, expected), expected_grads = run(lambda p, h: whole_logits(p, h, tokens, wanted, temperature))
    for a, b in zip(
        jax.tree.leaves((got, got_grads)), jax.tree.leaves((expected, expected_grads)), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=2e-5)
    assert not np.any(np.asarray(got)[:, ~np.asarray(wanted)])


def test_nothing_wanted_is_zero_with_zero_gradient(inputs):
    params, hidden, tokens, wanted = inputs
    none = jnp.zeros_like(wanted)
    grads = jax.grad(lambda p, h: sum(x.sum() for x in token_logprobs(p, h, tokens, none, 1.0, 4)), (0, 1))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(grads(params, hidden)))


def temporary_bytes(length, vocabulary, chunk):
    def loss(table, hidden, tokens):
        logprobs, entropies = token_logprobs(
            {"embedding": table}, hidden, tokens, tokens > 0, temperature=1.0, chunk=chunk
        )
        return (logprobs + entropies).sum()

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(
        jax.ShapeDtypeStruct((vocabulary, 16), jnp.float32),
        jax.ShapeDtypeStruct((1, length, 16), jnp.float32),
        jax.ShapeDtypeStruct((1, length), jnp.int32),
    )
    return compiled.compile().memory_analysis().temp_size_in_bytes


def test_memory_does_not_grow_with_tokens_times_vocabulary():
    """2,048 more tokens may cost what they hold (16 + a few numbers each), never 4 * 4,096 bytes each."""
    short, long = (temporary_bytes(length, 4096, chunk=64) for length in (2048, 4096))
    assert long - short < 2048 * 4 * 64
    assert short < 3 * 64 * 4096 * 4 + 4 * 2048 * 16 * 4 + 2 * 4096 * 16 * 4
