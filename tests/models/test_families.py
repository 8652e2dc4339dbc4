"""Every family against transformers + torch: logits, gradients, greedy text, sizes, the way back."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torch", reason="the oracle is installed on Python 3.11 only")

import torch
import transformers
from models.oracles import FAMILIES, VOCABULARY, load, make_oracle

from taorl_jax.models import checkpoint, kv_cache, transformer
from taorl_jax.models.model_config import read_model_config


@pytest.fixture(scope="module", params=FAMILIES)
def oracle(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    return folder, make_oracle(request.param, folder)


def some_tokens(rows, length):
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (rows, length))
    return tokens, np.broadcast_to(np.arange(length), (rows, length))


def our_logits(folder, tokens, positions, dtype):
    config, params = load(folder)
    hidden, _ = transformer.forward(config, params, tokens, positions, dtype=dtype)
    return np.asarray(transformer.unembed(params, hidden))


def test_logits_equal_those_of_transformers(oracle):
    folder, model = oracle
    tokens, positions = some_tokens(2, 70)
    expected = model(torch.tensor(tokens)).logits.detach().numpy()
    got = our_logits(folder, tokens, positions, jnp.float32)
    np.testing.assert_allclose(got, expected, atol=1e-4 * np.abs(expected).max())


def test_bfloat16_is_no_further_from_float32_than_that_of_torch(oracle):
    folder, model = oracle
    tokens, positions = some_tokens(2, 70)
    exact = model(torch.tensor(tokens)).logits.detach().numpy()
    rounded = copy.deepcopy(model).to(torch.bfloat16)(torch.tensor(tokens)).logits.detach().float().numpy()
    got = our_logits(folder, tokens, positions, jnp.bfloat16)
    assert 0 < np.std(got - exact) < 1.1 * np.std(rounded - exact)


def test_every_gradient_equals_that_of_torch(oracle, tmp_path):
    folder, model = oracle
    config, params = load(folder)
    tokens, positions = some_tokens(2, 17)

    def loss(params):
        hidden, _ = transformer.forward(config, params, tokens, positions)
        logprobs = jax.nn.log_softmax(transformer.unembed(params, hidden[:, :-1]))
        return -jnp.take_along_axis(logprobs, tokens[:, 1:, None], axis=-1).mean()

    grads = jax.jit(jax.grad(loss))(params)
    model.zero_grad()
    logits = model(torch.tensor(tokens)).logits[:, :-1]
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(tokens)[:, 1:].flatten()).backward()
    # Written as if they were weights, the gradients have torch's names and layouts.
    checkpoint.save_params(grads, config, tmp_path, like=folder)
    named = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    for name, weight in model.named_parameters():
        expected = weight.grad.numpy()
        np.testing.assert_allclose(named[name], expected, atol=1e-4 * np.abs(expected).max(), err_msg=name)


def test_greedy_generation_through_the_cache_equals_that_of_transformers(oracle):
    folder, model = oracle
    config, params = load(folder)
    prompt = some_tokens(1, 5)[0]
    with torch.no_grad():
        expected = model.generate(
            torch.tensor(prompt), max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    unrolled = transformer.unstack_layers(params)

    @jax.jit
    def step(tokens, positions, cache):
        hidden, cache = transformer.forward(config, unrolled, tokens, positions, cache=cache)
        return transformer.unembed(params, hidden[:, -1]).argmax(-1), cache

    cache = kv_cache.empty_cache(config, rows=1, blocks=1, block=69)
    token, cache = step(prompt, np.arange(5)[None], cache)
    generated = [int(token[0])]
    for position in range(5, 68):
        token, cache = step(token[:, None], np.array([[position]]), cache)
        generated.append(int(token[0]))
    assert generated == expected[0, 5:].tolist()


def test_parameter_count(oracle):
    folder, model = oracle
    config, params = load(folder)
    counted = sum(weight.numel() for weight in model.parameters())
    assert config.parameters == sum(leaf.size for leaf in jax.tree.leaves(params)) == counted


def test_round_trip_is_bit_equal_and_loads_in_transformers(oracle, tmp_path):
    folder, model = oracle
    config, params = load(folder)
    checkpoint.save_params(params, config, tmp_path, like=folder)
    assert read_model_config(tmp_path) == config
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    weights = again.state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, weights[name]), name
    tokens = torch.tensor(some_tokens(1, 9)[0])
    assert torch.equal(again(tokens).logits, model(tokens).logits)
