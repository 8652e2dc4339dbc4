"""The gradient of an update against torch in float64, and under every split that must not matter."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torch", reason="the oracle is installed on Python 3.11 only")

import torch
import transformers
from models.oracles import VOCABULARY, load, make_oracle
from training.episodes import COUNT, batch_of, make_episodes

from taorl_jax.models import checkpoint
from taorl_jax.training.update import ForwardSettings, accumulated_gradient

BOUNDS = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}
EPISODES = make_episodes(VOCABULARY)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    model = make_oracle("qwen2", folder)
    return folder, model, *load(folder)


def gradient(oracle, micro_rows=2, settings=None, loss=None, **layout_arguments):
    """(gradient, loss), divided."""
    _, _, config, params = oracle
    layout, packed = batch_of(EPISODES, micro_rows, **layout_arguments)
    settings = ForwardSettings(**settings or {})
    options = BOUNDS | (loss or {})
    run = jax.jit(lambda p, b, n: accumulated_gradient(config, settings, options, p, b, n))
    grads, watched = run(params, packed, layout.micro_batches)
    total, denominator = watched["loss"]
    return jax.tree.map(lambda g: g / denominator, grads), total / denominator


def torch_loss(model, temperature=1.0, entropy_coefficient=0.0, aggregation="token_mean"):
    """One episode at a time, in torch, by the formulas of the method."""
    total, denominator = 0.0, 0.0
    for t, a, o in zip(*EPISODES, strict=True):
        logits = model(torch.tensor(t.tokens[None], dtype=torch.long)).logits[0, :-1] / temperature
        distribution = torch.distributions.Categorical(logits=logits)
        advantage, old = torch.tensor(a[1:]), torch.tensor(o[1:])
        ratio = (distribution.log_prob(torch.tensor(t.tokens[1:], dtype=torch.long)) - old).exp()
        losses = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.28))
        losses = torch.where(advantage < 0, torch.minimum(losses, -3.0 * advantage), losses)
        losses = losses - entropy_coefficient * distribution.entropy()
        mask = torch.tensor(t.loss_mask[1:])
        summed = (losses * mask).sum()
        total += summed / mask.sum() if aggregation == "sequence_mean" else summed
        denominator += {"token_mean": mask.sum(), "sequence_mean": 1, "constant": 50}[aggregation]
    return total / denominator


def assert_equal_gradients(got, expected):
    for path, leaf in jax.tree.leaves_with_path(expected):
        other = got
        for key in path:
            other = other[key.key]
        np.testing.assert_allclose(other, leaf, atol=1e-5 * np.abs(leaf).max(), err_msg=str(path))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.3, "entropy_coefficient": 0.1},
        {"aggregation": "sequence_mean"},
        {"aggregation": "constant"},
    ],
    ids=str,
)
def test_gradient_equals_that_of_torch(oracle, options, tmp_path):
    folder, model, config, _ = oracle
    loss = {key: value for key, value in options.items() if key == "entropy_coefficient"}
    settings = {key: value for key, value in options.items() if key == "temperature"}
    layout = {key: value for key, value in options.items() if key == "aggregation"}
    grads, value = gradient(oracle, settings=settings, loss=loss, **layout)

    exact = copy.deepcopy(model).double()
    expected = torch_loss(exact, **options)
    expected.backward()
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
    # Written as if they were weights, the gradients have torch's names and layouts.
    checkpoint.save_params(grads, config, tmp_path, like=folder)
    named = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    for name, weight in exact.named_parameters():
        expected_grad = weight.grad.numpy()
        atol = 3e-5 * np.abs(expected_grad).max()  # float32 through a peaked softmax
        np.testing.assert_allclose(named[name], expected_grad, atol=atol, err_msg=name)


@pytest.mark.parametrize(
    "split",
    [
        {"micro_rows": 1},
        {"micro_rows": COUNT},
        {"micro_rows": 4, "row_tokens": 40},  # one or two episodes a row, as if padded
        {"order": [3, 1, 5, 0, 4, 2]},
        {"extra_rows": 5},  # rows of weight zero
        {"settings": {"head_chunk": 1}},
        {"settings": {"head_chunk": 7}},
        {"settings": {"remat": "full"}},
        {"settings": {"remat": "dots", "unroll": True}},
    ],
    ids=str,
)
def test_no_split_matters(oracle, split):
    grads, value = gradient(oracle, **split)
    expected, expected_value = gradient(oracle)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    assert_equal_gradients(grads, expected)


def test_a_batch_without_loss_tokens_has_no_gradient(oracle):
    _, _, config, params = oracle
    layout, packed = batch_of(EPISODES, 2)
    nothing = packed.replace(
        loss_mask=jnp.zeros_like(packed.loss_mask), denominators=jnp.zeros_like(packed.denominators)
    )
    grads, watched = accumulated_gradient(
        config, ForwardSettings(), BOUNDS, params, nothing, layout.micro_batches
    )
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(grads))
    assert watched["loss"] == (0.0, 0.0)
