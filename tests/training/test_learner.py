"""The update against a plain reference, and against itself under every split that must not matter."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import worlds
from training.episodes import COUNT, batch_of, make_episodes

from taorl_jax.models import transformer
from taorl_jax.training.learner import Learner
from taorl_jax.training.optimiser import make_optimiser
from taorl_jax.training.setup import prepare


@pytest.fixture(scope="module")
def episodes():
    return make_episodes(vocabulary=300)


def make(policy, **overrides):
    config = worlds.make_config(policy, **overrides)
    setup = prepare(config)
    learner = Learner(setup.model, setup.mesh, config)
    return config, setup, learner, learner.load(policy)


def one_update(policy, episodes, micro_rows=2, **layout_arguments):
    _, _, learner, state = make(policy, train__micro_rows=micro_rows)
    layout, packed = batch_of(episodes, micro_rows, **layout_arguments)
    state, metrics = learner.update(state, learner.place(packed), layout.micro_batches)
    return jax.device_get((state.params, metrics))


def reference_update(policy, episodes):
    """One trajectory at a time, unpacked, by the formulas of the method: the obviously right way."""
    config, setup, _, state = make(policy)
    trajectories, advantages, old = episodes

    def loss(params):
        total = count = 0.0
        for t, a, o in zip(trajectories, advantages, old, strict=True):
            tokens = jnp.array(t.tokens)[None]
            hidden, _ = transformer.forward(setup.model, params, tokens, jnp.arange(len(t))[None])
            logprobs = jax.nn.log_softmax(transformer.unembed(params, hidden[0, :-1]))
            taken = logprobs[jnp.arange(len(t) - 1), jnp.array(t.tokens)[1:]]
            ratio = jnp.exp(taken - o[1:])
            base = jnp.maximum(-a[1:] * ratio, -a[1:] * jnp.clip(ratio, 0.8, 1.28))
            token_loss = jnp.where(a[1:] < 0, jnp.minimum(base, -3.0 * a[1:]), base)
            total += jnp.sum(token_loss * t.loss_mask[1:])
            count += t.loss_mask[1:].sum()
        return total / count

    value, grads = jax.jit(jax.value_and_grad(loss))(state.params)
    clipped = optax.clip_by_global_norm(config.train.grad_clip)
    norm = optax.tree.norm(grads)
    grads, _ = clipped.update(grads, clipped.init(grads))
    adamw = optax.adamw(config.train.learning_rate, b1=0.9, b2=0.99, weight_decay=0.01)
    updates, _ = adamw.update(grads, adamw.init(state.params), state.params)
    return jax.device_get((optax.apply_updates(state.params, updates), value, norm))


def assert_close(params, expected):
    # Adam divides by the gradient's own size: where that is rounding noise, so is the step's sign.
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        assert np.mean(np.abs(a - b) > 1e-5) < 1e-3


def test_update_equals_the_reference(tiny_policy, episodes):
    params, metrics = one_update(tiny_policy, episodes)
    expected, loss, norm = reference_update(tiny_policy, episodes)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=1e-5)
    assert_close(params, expected)


@pytest.mark.parametrize(
    "split",
    [
        {"micro_rows": 1},
        {"micro_rows": 4},
        {"row_tokens": 40},
        {"order": [3, 1, 5, 0, 4, 2]},
        {"extra_rows": 5},
    ],
    ids=str,
)
def test_no_split_matters(tiny_policy, episodes, split):
    params, metrics = one_update(tiny_policy, episodes)
    other_params, other_metrics = one_update(tiny_policy, episodes, **split)
    for name in metrics:
        np.testing.assert_allclose(metrics[name], other_metrics[name], rtol=2e-5, atol=1e-6, err_msg=name)
    assert_close(params, other_params)


@pytest.mark.parametrize("temperature", [0.6, 1.3])
def test_ratio_is_one_before_the_first_update_at_any_temperature(tiny_policy, episodes, temperature):
    _, _, learner, state = make(tiny_policy, rollout__temperature=temperature)
    layout, packed = batch_of(episodes, 4)
    packed = learner.place(packed)
    old_logprobs, _ = learner.score(state.params, packed, layout.micro_batches)
    _, metrics = learner.update(state, packed.replace(old_logprobs=old_logprobs), layout.micro_batches)
    np.testing.assert_allclose(metrics["ratio_mean"], 1.0, atol=1e-6)
    assert metrics["clip_share_low"] == metrics["clip_share_high"] == 0


def test_a_gradient_that_is_not_finite_changes_nothing(tiny_policy, episodes):
    trajectories, advantages, old = episodes
    broken = (trajectories, [np.full_like(a, np.nan) for a in advantages], old)
    _, _, learner, state = make(tiny_policy)
    before = jax.device_get(state)
    layout, packed = batch_of(broken, 4)
    packed = learner.place(packed)
    state, metrics = learner.update(state, packed, layout.micro_batches)
    assert metrics["skipped_updates"] == 1
    for old_leaf, new_leaf in zip(jax.tree.leaves(before), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(old_leaf, new_leaf)


def test_updates_compile_once_however_many_trajectories_there_are(tiny_policy, episodes):
    _, _, learner, state = make(tiny_policy)
    for order in (range(COUNT), range(2), range(4)):
        layout, packed = batch_of(episodes, 4, order=order)
        state, _ = learner.update(state, learner.place(packed), layout.micro_batches)
    assert learner._update._cache_size() == 1


def test_learning_rate_rises_then_falls_by_hand():
    """Warm-up of 2 updates: 1/3, 2/3, then 1; a fall over 4 updates: 1, 3/4, 1/2, 1/4, 0."""
    import types

    settings = {"learning_rate": 3.0, "warmup_updates": 2, "decay_updates": 4, "grad_clip": 1.0}
    train = types.SimpleNamespace(**settings, beta1=0.0, beta2=0.0, weight_decay=0.0, decay_norms=True)
    optimiser = make_optimiser(train)
    params = jnp.array([1.0])
    state, steps = optimiser.init(params), []
    for _ in range(7):
        update, state = optimiser.update(jnp.array([1.0]), state, params)
        steps.append(-float(update[0]))  # Adam without memory moves by the learning rate
    np.testing.assert_allclose(steps, [1.0, 2.0, 3.0, 2.25, 1.5, 0.75, 0.0], rtol=1e-5, atol=1e-6)
