"""Properties of whole episodes: the real engine, automaton and scheduler, a random policy, a random tool.

The policy's ids spell code blocks (`worlds.talkative`), so episodes have several turns, of very different
lengths, that end in every way there is.
"""

import collections
import pathlib
import random
import resource

import numpy as np
import pytest
import worlds
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_use.line_scan import scan, text_of

from taorl_jax.data.pipeline import Prompt
from taorl_jax.data.problem import Problem
from taorl_jax.rollout.engine import Engine
from taorl_jax.rollout.scheduler import TRAINING, Draw, Scheduler
from taorl_jax.rollout.stopping import build_stop_table
from taorl_jax.rollout.trajectory import COLUMNS, Author
from taorl_jax.tool_use.observation import format_observation
from taorl_jax.tool_use.result import SandboxFailure
from taorl_jax.training.learner import Learner
from taorl_jax.training.packing import lay_out, pack
from taorl_jax.training.setup import prepare

SAMPLES = 5
PROBLEM = Problem("p", "q", "7", "")


class World:
    """Engines over one policy, told apart by their static sizes."""

    def __init__(self, policy):
        self.policy, self.engines = policy, {}
        self.setup = prepare(self.config())
        self.tokenizer = worlds.talkative(self.setup.tokenizer)
        learner = Learner(self.setup.model, self.setup.mesh, self.config())
        self.params = learner.load(policy).params
        self.rollout_params = learner.rollout_params(self.params)
        rng = random.Random(1)
        lengths = [2, 90, 7, 33, 64, 3, 18, 80]
        self.prompts = [
            Prompt(draw, PROBLEM, [rng.randrange(self.setup.model.vocab_size) for _ in range(length)])
            for draw, length in zip(rng.sample(range(1000), len(lengths)), lengths, strict=True)
        ]

    def config(self, **overrides):
        """Budgets for several turns; the cache grows from 48 to 96 and 192 tokens and shrinks again.

        Slots * heads * 48 exceeds 4,096: XLA's CPU backend computes the exponentials of smaller arrays in
        another way, and then the length of the cache would show in the last bit.
        """
        sizes = {"rollout__turn_tokens": 40, "rollout__max_turns": 4, "rollout__cache_bucket": 48}
        return worlds.make_config(self.policy, **(sizes | {"rollout__slots": 32} | overrides))

    def engine(self, **overrides):
        """Compiled once for each set of sizes."""
        sizes = tuple(sorted(overrides.items()))
        if sizes not in self.engines:
            self.engines[sizes] = self._new_engine(self.config(**overrides))
        return self.engines[sizes]

    def _new_engine(self, config):
        table = build_stop_table(self.tokenizer.token_bytes, self.setup.model.vocab_size)
        stop_ids = self.tokenizer.stop_ids
        return Engine(self.setup.model, self.setup.mesh, config.rollout, config.policy, table, stop_ids)

    def run(self, prompts=None, *, temperature=1.0, step=0, delay_s=0.0, delay_seed=0, **overrides):
        """The trajectories of some prompts, in the order of their draws."""
        with worlds.DelayedTool(delay_s, delay_seed) as tool:
            scheduler = Scheduler(self.engine(**overrides), self.tokenizer, tool, self.config(**overrides))
            trajectories, _ = scheduler.run(
                self.rollout_params,
                self.prompts if prompts is None else prompts,
                SAMPLES,
                Draw(0, TRAINING, step),
                temperature=temperature,
            )
        return sorted(trajectories, key=lambda t: (t.prompt_id, t.sample))


@pytest.fixture(scope="module")
def world(tiny_policy):
    return World(tiny_policy)


@pytest.fixture(scope="module")
def reference(world):
    return world.run()


def spelled(world, ids):
    """Bytes by token; ids beyond the tokenizer have none."""
    table = world.tokenizer.token_bytes
    return [table[token] if token < len(table) else b"" for token in ids]


def segments(trajectory):
    """[start, stop) of the policy's tokens of each turn."""
    for turn in range(trajectory.turns):
        where = np.flatnonzero(trajectory.loss_mask & (trajectory.turn_of == turn))
        assert (np.diff(where) == 1).all(), "a segment is one run of tokens"
        yield int(where[0]), int(where[-1]) + 1


def check_record(world, trajectory, config):
    """Everything that a record must satisfy, decided from its ids by other means than the scheduler's."""
    t, limits = trajectory, config.rollout
    assert {len(getattr(t, name)) for name in COLUMNS} == {len(t)}
    assert not t.logprobs[~t.loss_mask].any() and not t.entropies[~t.loss_mask].any()
    assert (t.logprobs[t.loss_mask] <= 0).all() and (t.entropies[t.loss_mask] >= 0).all()
    assert (np.diff(t.turn_of) >= 0).all()

    prompt = next(p for p in world.prompts if p.draw == t.prompt_id)
    rebuilt, calls = list(prompt.ids), iter(t.calls)
    for turn, (start, stop) in enumerate(segments(t)):
        assert len(rebuilt) == start, "nothing but prompt, segments and observations"
        ids = t.tokens[start:stop].tolist()
        rebuilt += ids
        assert stop - start <= limits.turn_tokens
        found = scan(text_of(spelled(world, ids)))
        assert scan(text_of(spelled(world, ids[:-1]))) is None, (
            "it stops at the first token that closes a block"
        )
        assert not set(ids[:-1]) & set(world.tokenizer.stop_ids)
        ended = ids[-1] in world.tokenizer.stop_ids
        budget = min(limits.turn_tokens, limits.context_tokens - start)
        assert ended or found is not None or stop - start == budget, "only these end a segment"
        if found is None or ended:
            assert turn == t.turns - 1
            continue
        call = next(calls)
        assert (call.turn, call.code, call.span) == (turn, found.code, (start, stop))
        assert call.result == worlds.result_of(found.code)
        text = format_observation(call.result, limits.observation_chars)
        shown = world.tokenizer.encode(text)
        if len(shown) > limits.observation_tokens:
            shown = shown[: limits.observation_tokens - 1] + world.tokenizer.encode("\n")
        if len(rebuilt) + len(shown) < limits.context_tokens:
            rebuilt += shown
            assert call.observation == text
        else:
            assert (call.observation, turn) == ("", t.turns - 1)
    assert next(calls, None) is None
    assert rebuilt == t.tokens.tolist(), "ids in, ids out"
    assert t.authors[: len(prompt.ids)].tolist() == [Author.PROMPT] * len(prompt.ids)
    assert len(t) <= limits.context_tokens and t.turns <= limits.max_turns


def test_the_world_is_worth_testing(reference):
    """Several turns, calls that succeed and fail, and ends of every kind that needs no outage."""
    ends = collections.Counter(t.end for t in reference)
    calls = [call for t in reference for call in t.calls]
    assert len(ends) >= 3, ends
    assert {call.valid for call in calls} == {True, False}
    assert max(t.turns for t in reference) >= 3
    lengths = [len(t) for t in reference]
    assert max(lengths) > 4 * min(lengths)


@settings(max_examples=200, deadline=None)
@given(step=st.integers(0, 2**32 - 1), temperature=st.sampled_from([0.6, 1.0, 1.3]))
def test_ids_in_are_ids_out(world, step, temperature):
    """Random episodes: prompt, observations and code rebuilt by other means give the ids of the record."""
    for trajectory in world.run(step=step, temperature=temperature):
        check_record(world, trajectory, world.config())


@pytest.mark.parametrize(
    "limits",
    [
        {"rollout__turn_tokens": 9},
        {"rollout__max_turns": 2},
        {"rollout__observation_tokens": 5},
        {"rollout__context_tokens": 100},
    ],
    ids=str,
)
def test_tight_budgets_are_exact(world, limits):
    config = world.config()
    with config.unlocked():
        config.update_from_flattened_dict({k.replace("__", "."): v for k, v in limits.items()})
    scheduler = Scheduler(world.engine(), world.tokenizer, worlds.DelayedTool(), config)
    trajectories, _ = scheduler.run(
        world.rollout_params, world.prompts, SAMPLES, Draw(0, TRAINING, 3), temperature=1.0
    )
    for trajectory in trajectories:
        check_record(world, trajectory, config)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_recorded_numbers_equal_those_of_the_trainer(world, temperature):
    """Log-probs and entropies of whole episodes, teacher-forced by the trainer: 1e-4 in float32.

    Also relative to the values, since the weights of this policy are five times those that models start with.
    """
    trajectories = world.run(temperature=temperature, step=7)
    assert sum(len(t.calls) for t in trajectories) > 10
    learner = Learner(world.setup.model, world.setup.mesh, world.config(rollout__temperature=temperature))
    layout = lay_out([len(t) for t in trajectories], len(trajectories), 192, 4)
    scored = learner.score(world.params, learner.place(pack(trajectories, layout)), layout.micro_batches)
    for name, values in zip(("logprobs", "entropies"), scored, strict=True):
        for t, again in zip(trajectories, layout.gather(values), strict=True):
            recorded = getattr(t, name)[t.loss_mask]
            np.testing.assert_allclose(recorded, again[t.loss_mask], rtol=1e-4, atol=1e-4, err_msg=name)


def assert_same_bits(trajectories, reference):
    for one, other in zip(trajectories, reference, strict=True):
        assert (one.prompt_id, one.sample) == (other.prompt_id, other.sample)
        for name in COLUMNS:
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
        assert (one.end, one.answer, one.calls) == (other.end, other.answer, other.calls)


@settings(max_examples=200, deadline=None)
@given(
    order=st.permutations(range(8)),
    chunk=st.sampled_from([3, 4]),
    delay_s=st.sampled_from([0.0, 0.005, 0.05]),
    delay_seed=st.integers(0, 99),
)
def test_bits_depend_on_no_order_chunk_or_delay(world, reference, order, chunk, delay_s, delay_seed):
    """More episodes than slots, prompts in any order, chunks of any length, answers whenever they come."""
    trajectories = world.run(
        [world.prompts[i] for i in order], delay_s=delay_s, delay_seed=delay_seed, rollout__chunk=chunk
    )
    assert_same_bits(trajectories, reference)


@settings(max_examples=6, deadline=None)
@given(chosen=st.sets(st.integers(0, 7), min_size=1, max_size=4))
def test_bits_depend_on_no_company(world, reference, chosen):
    """Some of the prompts alone: a re-rolled or resumed episode meets other neighbours."""
    trajectories = world.run([world.prompts[i] for i in sorted(chosen)])
    draws = {world.prompts[i].draw for i in chosen}
    assert_same_bits(trajectories, [t for t in reference if t.prompt_id in draws])


class Unreliable(worlds.DelayedTool):
    """Loses half of the snippets that it has not lost before."""

    def __init__(self):
        super().__init__()
        self._seen = set()

    def submit(self, code):
        future = super().submit(code)
        if code in self._seen or self._random.random() < 0.5:
            return future
        self._seen.add(code)
        failed = type(future)()
        failed.set_exception(SandboxFailure("lost"))
        return failed


def test_a_rerolled_episode_repeats_its_bits(world, reference):
    config = world.config(rollout__rerolls=50)
    scheduler = Scheduler(world.engine(), world.tokenizer, Unreliable(), config)
    trajectories, stats = scheduler.run(
        world.rollout_params, world.prompts, SAMPLES, Draw(0, TRAINING, 0), temperature=1.0
    )
    assert stats.rerolled > 3 and stats.dropped == 0
    assert_same_bits(sorted(trajectories, key=lambda t: (t.prompt_id, t.sample)), reference)


def test_samples_of_a_prompt_differ(reference):
    by_prompt = collections.defaultdict(set)
    for t in reference:
        by_prompt[t.prompt_id].add(t.tokens.tobytes())
    assert all(len(different) == SAMPLES for different in by_prompt.values())


def test_two_hundred_rollouts_leak_no_memory(world):
    """Least squares over 200 rollouts after 60 to warm up: below 0.1 MB each."""
    sizes = {"rollout__slots": 8, "rollout__cache_bucket": 1024}
    resident_mb = []
    for step in range(260):
        world.run(world.prompts[:2], step=step, **sizes)
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
        resident_mb.append(pages * resource.getpagesize() / 2**20)
    assert np.polyfit(np.arange(200), resident_mb[60:], 1)[0] < 0.1
