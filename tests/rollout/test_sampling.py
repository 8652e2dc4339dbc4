"""Sampling against the distribution it claims to draw from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from scipy import stats

from taorl_jax.rollout.sampling import Truncation, request_key, sample, token_uniforms


def draw(logits_V, temperature, count, seed=0):
    """`count` draws from one distribution, a hundred rows at a time."""
    logits = jnp.broadcast_to(jnp.asarray(logits_V, jnp.float32), (100, len(logits_V)))
    uniforms = jax.random.uniform(jax.random.key(seed), (count // 100, 100, 2))
    drawn = jax.lax.map(lambda pairs: sample(logits, temperature, pairs), uniforms)
    return jax.tree.map(lambda x: x.reshape(-1), drawn)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_frequencies_logprobs_and_entropies_are_those_of_the_softmax(temperature):
    logits = np.random.default_rng(0).normal(0, 2, 97)
    scaled = logits / temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    tokens, logprobs, entropies = draw(logits, temperature, 50_000)
    observed = np.bincount(tokens, minlength=97)
    rare = probs * 50_000 < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(probs[~rare], probs[rare].sum()) * 50_000
    assert stats.chisquare(observed, expected).pvalue > 1e-3
    np.testing.assert_allclose(logprobs, np.log(probs)[np.asarray(tokens)], atol=1e-5)
    np.testing.assert_allclose(entropies, -(probs * np.log(probs)).sum(), atol=1e-5)


def test_a_large_vocabulary_keeps_its_tail():
    """151,936 entries, half the mass in a tail of 150,000 equal ones: each block gets its share."""
    logits = np.zeros(151_936)
    logits[:1936] = np.log(150_000 / 1936)
    tokens, _, _ = draw(logits, 1.0, 8_000)
    tokens = np.asarray(tokens)
    observed = np.append((tokens < 1936).sum(), np.histogram(tokens, bins=np.linspace(1936, 151_936, 31))[0])
    expected = np.append(4000, np.full(30, 4000 / 30))
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_impossible_tokens_are_never_drawn_at_either_end_of_the_unit_interval():
    logits = jnp.array([[-jnp.inf, 0.0, -jnp.inf, 1.0, -jnp.inf]] * 2)
    edges = jnp.array([[0.0, 0.0], [1.0 - 2**-24, 1.0 - 2**-24]])
    tokens, logprobs, entropies = sample(logits, 1.0, edges)
    assert tokens.tolist() == [1, 3]
    assert np.isfinite(logprobs).all()
    assert np.isfinite(entropies).all()


def test_zero_temperature_takes_the_most_likely_token():
    tokens, logprobs, _ = draw([0.0, 3.0, 1.0], 0.0, 100)
    assert tokens.tolist() == [1] * 100
    np.testing.assert_allclose(logprobs, 3 - np.log(1 + np.e**3 + np.e), rtol=1e-5)


def test_every_part_of_a_request_changes_the_numbers():
    base = (0, 0, 0, 0, 0)
    requests = [base] + [tuple(int(i == part) for i in range(5)) for part in range(5)]
    pairs = [tuple(token_uniforms(request_key(*r)[None], jnp.array([[3]]))[0, 0].tolist()) for r in requests]
    assert len(set(pairs)) == len(requests)
    again = token_uniforms(request_key(*base)[None], jnp.array([[3]]))[0, 0].tolist()
    assert tuple(again) == pairs[0]


@pytest.mark.parametrize(
    "truncation",
    [Truncation(5), Truncation(0, 0.7), Truncation(0, 1.0, 0.2), Truncation(20, 0.9, 0.05)],
    ids=str,
)
def test_truncation_keeps_what_transformers_keeps(truncation):
    """Its processors, in its order; draws, log-probs and entropies are those of what is left."""
    logits = np.random.default_rng(3).normal(0, 1, 97).astype(np.float32)
    scores = torch.tensor(logits)[None] / 0.8
    if truncation.top_k:
        scores = transformers.TopKLogitsWarper(truncation.top_k)(None, scores)
    scores = transformers.TopPLogitsWarper(truncation.top_p)(None, scores)
    scores = transformers.MinPLogitsWarper(truncation.min_p)(None, scores)
    expected = torch.log_softmax(scores, -1)[0].numpy()
    uniforms = jax.random.uniform(jax.random.key(0), (4000, 2))
    tokens, logprobs, entropies = sample(jnp.tile(logits, (4000, 1)), 0.8, uniforms, truncation)
    probs = np.exp(expected, dtype=np.float64)
    probs /= probs.sum()
    observed, kept = np.bincount(tokens, minlength=97), probs > 0
    assert not observed[~kept].any()
    assert stats.chisquare(observed[kept], 4000 * probs[kept]).pvalue > 1e-3
    np.testing.assert_allclose(logprobs, expected[np.asarray(tokens)], atol=1e-5)
    entropy = -(probs[kept] * expected[kept]).sum()
    np.testing.assert_allclose(entropies, entropy, atol=1e-5)


def test_a_truncated_greedy_draw_is_the_most_likely_token():
    truncation = Truncation(2, 0.5, 0.5)
    tokens, *_ = sample(jnp.array([[0.0, 3.0, 1.0]]), 0.0, jnp.array([[0.9, 0.9]]), truncation)
    assert tokens.tolist() == [1]
