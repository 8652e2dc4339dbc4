"""A step's update from its file equals the live one, bit for bit."""

import itertools

import jax
import numpy as np
import pytest
import worlds

from taorl_jax.data.pipeline import Prompt
from taorl_jax.errors import UserError
from taorl_jax.rewards.verdict import Outcome, Verdict
from taorl_jax.rollout.engine import Engine
from taorl_jax.rollout.scheduler import Scheduler
from taorl_jax.rollout.stopping import build_stop_table
from taorl_jax.training.experience import collect
from taorl_jax.training.learner import Learner
from taorl_jax.training.learning import learn
from taorl_jax.training.recorded_step import RecordedStep, read_step, write_step
from taorl_jax.training.setup import prepare


class TakingTurns:
    """Stands for the judge: right and wrong in turn."""

    def judge_many(self, pairs, progress):
        outcomes = itertools.cycle([Outcome.RIGHT, Outcome.WRONG])
        return [
            Verdict(outcome, answer, "in turn") for (_, answer), outcome in zip(pairs, outcomes, strict=False)
        ]


@pytest.fixture(scope="module")
def live(tiny_policy):
    """(config, setup, experience, params after its updates, metrics) of a step with tool calls."""
    switches = {f"filter__{name}": False for name in ("criterion1", "drop_void", "drop_overlong")}
    config = worlds.make_config(tiny_policy, filter__min_group=2, bonus__coefficient=0.2, **switches)
    setup = prepare(config)
    tokenizer = worlds.talkative(setup.tokenizer)
    table = build_stop_table(tokenizer.token_bytes, setup.model.vocab_size)
    engine = Engine(setup.model, setup.mesh, config.rollout, config.policy, table, tokenizer.stop_ids)
    learner = Learner(setup.model, setup.mesh, config)
    state = learner.load(tiny_policy)
    scheduler = Scheduler(engine, tokenizer, worlds.DelayedTool(), config)
    stream = (Prompt(draw, p.problem, p.ids) for draw, p in enumerate(itertools.cycle(setup.heldout.prompts)))
    experience = collect(
        scheduler, learner.rollout_params(state.params), stream, TakingTurns(), config, 0, lambda *_: None
    )
    state, _, metrics, _ = learn(experience.groups, learner, state, config)
    return config, setup, experience, jax.device_get(state.params), metrics


def replayed(live, groups, **overrides):
    config, setup, *_ = live
    with config.unlocked():
        changed = config.copy_and_resolve_references()
        changed.update_from_flattened_dict({k.replace("__", "."): v for k, v in overrides.items()})
    learner = Learner(setup.model, setup.mesh, changed)
    state, _, metrics, _ = learn(groups, learner, learner.load(config.policy.checkpoint), changed)
    return jax.device_get(state.params), metrics


def test_parameters_and_metrics_equal_those_of_the_live_step(live, tmp_path):
    _, _, experience, params, metrics = live
    assert any(t.post_tool_mask.any() for group in experience.groups for t, _ in group.kept())
    assert metrics["train/updates"] == 2
    write_step(tmp_path / "replay" / "step.arrow", RecordedStep(0, experience.groups))
    recorded = read_step(tmp_path / "replay" / "step.arrow")
    assert recorded.policy_step == 0
    assert [group.prompt for group in recorded.groups] == [group.prompt for group in experience.groups]
    again, metrics_again = replayed(live, recorded.groups)
    assert metrics_again == metrics
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)


def test_another_config_makes_something_else_of_the_same_episodes(live):
    _, _, experience, _, metrics = live
    _, other = replayed(live, experience.groups, bonus__coefficient=0.0)
    assert other["train/loss"] != metrics["train/loss"]
    assert other["train/sampler_gap_max"] == metrics["train/sampler_gap_max"]


def test_a_step_without_groups_is_recorded_too(tmp_path):
    write_step(tmp_path / "step.arrow", RecordedStep(3, []))
    assert read_step(tmp_path / "step.arrow") == RecordedStep(3, [])


@pytest.mark.parametrize("data", [b"", b"not arrow", None])
def test_what_is_no_recorded_step_is_refused(tmp_path, data):
    if data is not None:
        (tmp_path / "step.arrow").write_bytes(data)
    with pytest.raises(UserError, match=r"step\.arrow.*log\.replay_every"):
        read_step(tmp_path / "step.arrow")
