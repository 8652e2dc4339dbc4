"""From groups to what the loss reads: gate, bonus and advantages land on the right tokens."""

import numpy as np
import pytest
import worlds

from taorl_jax.data.pipeline import Prompt
from taorl_jax.data.problem import Problem
from taorl_jax.rollout.trajectory import ToolCall, Trajectory
from taorl_jax.tool_use.result import SandboxResult
from taorl_jax.training.experience import Group
from taorl_jax.training.learner import Learner
from taorl_jax.training.setup import prepare
from taorl_jax.training.targets import agreement, make_targets


def episode(prompt, sample, outcome, seed):
    """A prompt of 3, a turn of 6, an observation of 2, a turn of 10."""
    rng = np.random.default_rng(seed)
    t = Trajectory(prompt, sample, rng.integers(0, 300, 3))
    t.append_policy(rng.integers(0, 300, 6), np.full(6, -1.0), np.full(6, 1.0))
    t.append_observation(rng.integers(0, 300, 2))
    t.calls.append(ToolCall(0, "1", SandboxResult(outcome, "", "", None, 1.0), outcome == "ok", "", (3, 9)))
    t.turns += 1
    t.append_policy(rng.integers(0, 300, 10), np.full(10, -1.0), np.full(10, 1.0))
    t.turns += 1
    return t


@pytest.fixture(scope="module")
def world(tiny_policy):
    config = worlds.make_config(
        tiny_policy, bonus__coefficient=0.5, rollout__prompts=2, rollout__samples=4, rollout__slots=8
    )
    setup = prepare(config)
    learner = Learner(setup.model, setup.mesh, config)
    return config, learner, learner.load(tiny_policy).params


def groups():
    """Two groups of four; the second episode of the first called in vain, the last of each is not kept."""
    made = []
    for g in range(2):
        trajectories = [episode(g, s, "exception" if (g, s) == (0, 1) else "ok", 4 * g + s) for s in range(4)]
        prompt = Prompt(g, Problem(str(g), "q", "1", ""), [1])
        keep = np.array([True, True, True, False])
        made.append(Group(prompt, trajectories, keep, np.array([1.0, -1.0, 0.5, 0.0], np.float32)))
    return made


def test_bonus_reaches_the_top_fifth_of_post_tool_tokens_after_valid_calls_only(world):
    config, learner, params = world
    made = groups()
    targets = make_targets(made, learner, params, config)
    assert len(targets.minibatches) == 2
    kept = [t for group in made for t, _ in group.kept()]
    assert list(targets.reshaped) == kept
    for t, advantage in [pair for group in made for pair in group.kept()]:
        reshaped = targets.reshaped[t]
        assert not reshaped[~t.loss_mask].any()
        changed = t.loss_mask & (reshaped != np.float32(advantage))
        assert not changed[~t.post_tool_mask].any()
        # ceil(0.2 * 10) tokens of the second turn, none if the call failed
        assert changed.sum() == (0 if t.all_calls_failed else 2)


def test_reshaped_values_follow_the_formula(world):
    """A (1 + a Z), Z over all loss tokens of the mini-batch, computed again here from the scores."""
    config, learner, params = world
    made = groups()
    targets = make_targets(made, learner, params, config)
    for group, minibatch in zip(made, targets.minibatches, strict=True):
        _, entropies = learner.score(params, minibatch.packed, minibatch.layout.micro_batches)
        entropies = minibatch.layout.gather(entropies)
        trajectories = [t for t, _ in group.kept()]
        pooled = np.concatenate([e[t.loss_mask] for e, t in zip(entropies, trajectories, strict=True)])
        for (t, advantage), entropy in zip(group.kept(), entropies, strict=True):
            z = (entropy - pooled.mean()) / pooled.std()
            top = np.argsort(-np.where(t.post_tool_mask, entropy, -np.inf))[: 2 * (not t.all_calls_failed)]
            expected = np.where(t.loss_mask, advantage, 0.0)
            expected[top] *= 1 + 0.5 * z[top]
            np.testing.assert_allclose(targets.reshaped[t], expected, rtol=1e-4, atol=1e-6)


def test_the_packed_batch_holds_what_was_reshaped_and_scored(world):
    config, learner, params = world
    made = groups()
    targets = make_targets(made, learner, params, config)
    for group, minibatch in zip(made, targets.minibatches, strict=True):
        packed, layout = minibatch.packed, minibatch.layout
        logprobs, _ = learner.score(params, packed, layout.micro_batches)
        np.testing.assert_array_equal(packed.old_logprobs, logprobs)
        for (t, _), advantages in zip(group.kept(), layout.gather(packed.advantages), strict=True):
            np.testing.assert_array_equal(advantages, targets.reshaped[t])


def test_nothing_kept_makes_no_minibatch(world):
    config, learner, params = world
    targets = make_targets([], learner, params, config)
    assert targets.minibatches == []
    assert targets.reshaped == {}


def test_agreement_by_hand():
    t = Trajectory(0, 0, [1])
    t.append_policy([2, 3], [-1.0, -2.0], [0.0, 0.0])
    metrics = agreement([t], [np.array([9.0, -1.5, -2.0])])
    assert metrics["train/sampler_gap_mean"] == 0.25
    assert metrics["train/sampler_gap_max"] == 0.5
    assert metrics["train/sampler_pearson"] == pytest.approx(1.0)
