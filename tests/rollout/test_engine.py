"""The device side of sampling, on a random policy: exactness, invariants, and what never depends on what."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds

from taorl_jax.models import transformer
from taorl_jax.rollout.engine import Stop
from taorl_jax.training.learner import Learner
from taorl_jax.training.setup import prepare
from taorl_jax.training.token_logprobs import token_logprobs


class World:
    """An engine with its policy, and the episodes that it decodes."""

    def __init__(self, policy, **overrides):
        self.config = worlds.make_config(policy, **overrides)
        self.setup = prepare(self.config)
        self.engine = self.setup.engine
        learner = Learner(self.setup.model, self.setup.mesh, self.config)
        self.params = learner.load(policy).params
        self.rollout_params = learner.rollout_params(self.params)
        self.prompts = [prompt.ids for prompt in self.setup.heldout.prompts]
        self.tokens, self.logprobs, self.entropies, self.stops = {}, {}, {}, {}

    def start(self, episodes, budget=20):
        """`episodes`: slot -> (prompt, sample); prompts are numbered as in the held-out set."""
        wanted = sorted({prompt for prompt, _ in episodes.values()})
        pool = self.engine.prefill(self.rollout_params, [self.prompts[p] for p in wanted])
        starts = []
        for slot, (prompt, sample) in episodes.items():
            ids = self.prompts[prompt]
            starts.append((slot, wanted.index(prompt), ids, (0, 0, 0, prompt, sample), budget))
            self.tokens[slot] = list(ids)
            self.logprobs[slot], self.entropies[slot] = [0.0] * len(ids), [0.0] * len(ids)
        self.engine.fork(pool, starts)

    def decode(self, chunks, temperature=1.0):
        for _ in range(chunks):
            report = self.engine.fetch(self.engine.decode(self.rollout_params, temperature))
            for slot in self.tokens:
                count = report.counts_S[slot]
                self.tokens[slot] += report.tokens_SxC[slot, :count].tolist()
                self.logprobs[slot] += report.logprobs_SxC[slot, :count].tolist()
                self.entropies[slot] += report.entropies_SxC[slot, :count].tolist()
                if report.stops_S[slot]:
                    self.stops[slot] = Stop(report.stops_S[slot])

    def observe(self, slot, ids, budget=20):
        last = self.tokens[slot][-1]
        self.tokens[slot] += ids
        self.logprobs[slot] += [0.0] * len(ids)
        self.entropies[slot] += [0.0] * len(ids)
        return slot, last, ids, budget


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_recorded_numbers_equal_a_teacher_forced_forward_over_tool_turns(tiny_policy, temperature):
    """Observations of 1 to 21 tokens, one to three pieces of `extend_tokens` = 8, to some slots only."""
    world = World(tiny_policy)
    world.start({slot: (slot // 2, slot % 2) for slot in range(8)})
    world.decode(6, temperature)
    observed = [world.observe(slot, list(range(40, 41 + 4 * slot))) for slot in (5, 0, 2, 1, 4)]
    world.engine.extend(world.rollout_params, observed)
    world.decode(6, temperature)
    for slot, tokens in world.tokens.items():
        ids = jnp.array([tokens])
        positions = jnp.arange(len(tokens))[None]
        hidden, _ = transformer.forward(world.setup.model, world.params, ids, positions)
        wanted = jnp.ones_like(ids, bool)
        logprobs, entropies = token_logprobs(world.params, hidden, ids, wanted, temperature, chunk=512)
        sampled = np.array(world.logprobs[slot]) != 0
        assert sampled.sum() >= 20 or world.stops[slot] is Stop.END
        np.testing.assert_allclose(np.array(world.logprobs[slot])[sampled], logprobs[0][sampled], atol=1e-4)
        np.testing.assert_allclose(np.array(world.entropies[slot])[sampled], entropies[0][sampled], atol=1e-4)


def test_an_episode_does_not_depend_on_slot_neighbours_or_chunk(tiny_policy):
    """Same episodes in other slots, in other company, in chunks of 3 instead of 4: the same bits."""
    first = World(tiny_policy)
    first.start({0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (2, 0)})
    first.decode(6)
    second = World(tiny_policy, rollout__chunk=3)
    second.start({7: (3, 1), 2: (2, 1)})
    second.decode(2)
    second.start({6: (0, 0), 1: (1, 0), 4: (2, 0), 5: (0, 1)})
    second.decode(8)
    for there, here in {0: 6, 1: 5, 2: 1, 3: 4}.items():
        assert first.tokens[there] == second.tokens[here]
        assert first.logprobs[there] == second.logprobs[here]
        assert first.entropies[there] == second.entropies[here]
    assert first.tokens[0] != first.tokens[1], "samples of one prompt differ"


def test_budgets_are_exact_and_idle_slots_are_left_alone(tiny_policy):
    world = World(tiny_policy)
    world.start({3: (0, 0)}, budget=7)
    before = jax.tree.map(np.array, world.engine.state.cache)
    world.decode(3)
    if world.stops[3] is Stop.BUDGET:
        assert len(world.tokens[3]) == len(world.prompts[0]) + 7
    after = world.engine.state.cache
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(np.delete(old, 3, axis=0), np.delete(np.asarray(new), 3, axis=0))


def test_decode_leaves_early_and_a_released_engine_does_nothing(tiny_policy):
    world = World(tiny_policy)
    world.start({0: (0, 0)}, budget=20)
    world.engine.release()
    report = world.engine.fetch(world.engine.decode(world.rollout_params, 1.0))
    assert not report.counts_S.any()


def test_an_evaluation_shares_no_numbers_with_training(tiny_policy):
    world = World(tiny_policy)
    pool = world.engine.prefill(world.rollout_params, [world.prompts[0]])
    for slot, stream in ((0, 0), (1, 1)):
        ids = world.prompts[0]
        world.engine.fork(pool, [(slot, 0, ids, (0, stream, 0, 0, 0), 20)])
        world.tokens[slot], world.logprobs[slot], world.entropies[slot] = list(ids), [], []
    world.decode(3)
    assert world.tokens[0] != world.tokens[1]


def test_only_an_evaluation_is_truncated(tiny_policy):
    """With top_k = 1 it is greedy, whatever the temperature; training draws from everything."""
    drawn = {}
    for temperature, truncated in ((1.3, True), (0.0, False), (1.3, False)):
        world = World(tiny_policy, eval__top_k=1)
        world.start({slot: (slot, 0) for slot in range(4)}, budget=8)
        reports = [world.engine.decode(world.rollout_params, temperature, truncated) for _ in range(2)]
        reports = [world.engine.fetch(report) for report in reports]
        drawn[temperature, truncated] = [
            r.tokens_SxC[s, : r.counts_S[s]].tolist() for r in reports for s in range(4)
        ]
    assert drawn[1.3, True] == drawn[0.0, False] != drawn[1.3, False]


def test_nothing_compiles_in_steady_state(tiny_policy):
    """Through every length of the cache and back."""
    world = World(tiny_policy, rollout__cache_bucket=48)
    world.prompts = [ids[:30] for ids in world.prompts]
    assert world.engine.state is None, "making an engine allocates nothing"
    world.start({0: (0, 0)}, budget=1)
    compilations = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: compilations.append(name) if "backend_compile" in name else None
    )
    world.start({slot: (slot % 4, 1) for slot in range(8)}, budget=6)
    lengths = set()
    for _ in range(3):
        world.decode(2)
        lengths.add(world.engine.state.cache[0].length)
        resumed = [world.observe(slot, [40] * 45, budget=6) for slot in world.stops]
        world.stops.clear()
        world.engine.extend(world.rollout_params, resumed)
    world.engine.release()
    world.start({0: (0, 0)}, budget=1)
    lengths.add(world.engine.state.cache[0].length)
    assert lengths == {48, 96, 192}
    assert compilations == []
