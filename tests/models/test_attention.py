"""The attention backends against plain attention over one segment at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taorl_jax.errors import UserError
from taorl_jax.models import attention, xla_attention


def random_inputs(T, H, K, D, segments, rows=2):
    rng = np.random.default_rng(0)
    queries, keys, values = (
        jnp.asarray(rng.normal(size=(rows, T, heads, D)), jnp.float32) for heads in (H, K, K)
    )
    segment_ids = np.zeros((rows, T), np.int32)
    for row in range(rows):
        cuts = np.sort(rng.choice(np.arange(1, T), segments, replace=False))
        segment_ids[row] = np.searchsorted(cuts, np.arange(T), side="right") + 1
        segment_ids[row, cuts[-1] :] = 0  # padding
    return queries, keys, values, jnp.asarray(segment_ids)


def plain_attention(queries, keys, values, segment_ids):
    """Token by token, head by head."""
    out = np.zeros(queries.shape)
    for b, t, h in np.ndindex(queries.shape[:3]):
        k = h // (queries.shape[2] // keys.shape[2])
        seen = [s for s in range(t + 1) if segment_ids[b, s] == segment_ids[b, t]]
        scores = np.array([queries[b, t, h] @ keys[b, s, k] for s in seen]) / np.sqrt(queries.shape[-1])
        weights = np.exp(scores - scores.max())
        out[b, t, h] = (weights / weights.sum()) @ np.array([values[b, s, k] for s in seen])
    return out


@pytest.mark.parametrize("block", [4, 7, 512])
def test_xla_attention_by_blocks_of_queries_equals_plain_attention(block, monkeypatch):
    monkeypatch.setattr(xla_attention, "QUERY_BLOCK", block)
    inputs = random_inputs(T=18, H=4, K=2, D=6, segments=3)
    got = attention.packed_attention(*inputs, "xla")
    expected = plain_attention(*(np.asarray(x, np.float64) for x in inputs))
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_gradients_by_blocks_equal_those_in_one_piece(monkeypatch):
    inputs = random_inputs(T=18, H=4, K=2, D=6, segments=3)

    def grads():
        def loss(*qkv):
            return jnp.sum(jnp.sin(attention.packed_attention(*qkv, inputs[3], "xla")))

        return jax.grad(loss, argnums=(0, 1, 2))(*inputs[:3])

    whole = grads()
    monkeypatch.setattr(xla_attention, "QUERY_BLOCK", 5)
    for got, expected in zip(grads(), whole, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_splash_equals_xla_in_values_and_gradients():
    """The TPU kernel in interpret mode; padding is left out of the comparison, as it is of every loss."""
    inputs = random_inputs(T=256, H=4, K=2, D=128, segments=3, rows=1)
    counted = (inputs[3] > 0)[..., None, None]

    def run(function):
        def loss(*qkv):
            out = jnp.where(counted, function(*qkv, inputs[3]), 0.0)
            return jnp.sum(jnp.sin(out)), out

        return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(*inputs[:3])

    (_, got), got_grads = run(lambda *x: attention.splash_rows(*x, interpret=True))
    (_, expected), expected_grads = run(lambda *x: attention.packed_attention(*x, "xla"))
    np.testing.assert_allclose(got, expected, atol=2e-5)
    for a, b in zip(got_grads, expected_grads, strict=True):
        np.testing.assert_allclose(a, b, atol=5e-5)


def test_splash_refuses_rows_that_it_cannot_tile():
    with pytest.raises(UserError, match="multiple of 128 tokens, not 200"):
        attention.splash_rows(*random_inputs(T=200, H=1, K=1, D=128, segments=2, rows=1))


@pytest.mark.parametrize(
    ("setting", "platform", "dtype", "backend"),
    [
        ("auto", "cpu", "float32", "xla"),
        ("auto", "tpu", "bfloat16", "splash"),
        ("auto", "gpu", "bfloat16", "cudnn"),
        ("auto", "gpu", "float32", "xla"),  # cuDNN's kernel has no float32
        ("xla", "tpu", "float32", "xla"),
    ],
)
def test_the_backend_follows_the_platform(setting, platform, dtype, backend):
    assert attention.choose_backend(setting, platform, jnp.dtype(dtype)) == backend


@pytest.mark.parametrize(
    ("setting", "platform", "dtype"),
    [("flash", "cpu", "float32"), ("splash", "cpu", "float32"), ("cudnn", "gpu", "float32")],
)
def test_a_backend_that_cannot_run_is_refused(setting, platform, dtype):
    with pytest.raises(UserError, match=r"policy\.attention=.*use 'auto'"):
        attention.choose_backend(setting, platform, jnp.dtype(dtype))
