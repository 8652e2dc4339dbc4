"""The sampler: pure functions over one DecodeState, which is donated from call to call.

An episode lives in a slot. The invariant: the cache of slot s holds the episode's tokens [0, length_S[s]),
and last_token_S[s] is the next one, not in the cache yet. So nothing is ever run twice: `prefill` runs a
prompt but for its last token, `fork` copies it into the slots of its samples, `decode` samples, and `extend`
appends the observation of a tool to some slots without touching their history.
"""

import enum
import functools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from taorl_jax.distributed import mesh as meshes
from taorl_jax.models import kv_cache, transformer
from taorl_jax.models.model_config import ModelConfig
from taorl_jax.rollout import sampling
from taorl_jax.rollout.stopping import StopTable


class Stop(enum.IntEnum):
    """Why a policy segment ended on the device."""

    RUNNING = 0
    CODE = 1  # the closing fence of a Python block
    END = 2  # a stop id
    BUDGET = 3  # the segment's token budget


@flax.struct.dataclass
class DecodeState:
    """Everything that the device knows of the running episodes (S slots)."""

    cache: tuple[kv_cache.LayerCache, ...]
    length_S: jax.Array  # int32: tokens in the cache
    last_token_S: jax.Array  # int32: the token after them
    key_S: jax.Array  # random key of the episode
    stop_state_S: jax.Array  # int32: state of the stop automaton in this segment
    budget_S: jax.Array  # int32: tokens that this segment may still have
    active_S: jax.Array  # bool: decoding


@flax.struct.dataclass
class Report:
    """What one call of `decode` did, for the host; not donated. C: steps of the chunk."""

    tokens_SxC: jax.Array
    logprobs_SxC: jax.Array
    entropies_SxC: jax.Array
    counts_S: jax.Array  # int32: how many of the C are filled
    stops_S: jax.Array  # int32: Stop of the slots that stopped in this chunk


def prefill(model, dtype, cache_dtype, params, tokens_PxL, lengths_P):
    """Runs P prompts but for their last tokens; returns their caches, [P, ..., L]."""
    P, L = tokens_PxL.shape
    order = jnp.arange(L)
    positions_PxL = jnp.where(order < lengths_P[:, None] - 1, order, L)
    pool = kv_cache.empty_cache(model, P, L, cache_dtype)
    _, pool = transformer.forward(model, params, tokens_PxL, positions_PxL, dtype=dtype, cache=pool)
    return pool


def fork(state, pool, slots_F, rows_F, lengths_F, last_tokens_F, requests_Fx5, budgets_F, start):
    """Starts episodes: copies prompts from the pool into slots (a slot beyond the last is dropped)."""
    L = pool[0].length

    def copy(slot_cache, pool_cache):
        return kv_cache.LayerCache(
            slot_cache.keys_BxKxDxS.at[slots_F, :, :, :L].set(pool_cache.keys_BxKxDxS[rows_F], mode="drop"),
            slot_cache.values_BxKxSxD.at[slots_F, :, :L].set(pool_cache.values_BxKxSxD[rows_F], mode="drop"),
        )

    keys_F = jax.vmap(lambda request: sampling.request_key(*request))(requests_Fx5)
    return DecodeState(
        cache=tuple(map(copy, state.cache, pool)),
        length_S=state.length_S.at[slots_F].set(lengths_F - 1, mode="drop"),
        last_token_S=state.last_token_S.at[slots_F].set(last_tokens_F, mode="drop"),
        key_S=state.key_S.at[slots_F].set(keys_F, mode="drop"),
        stop_state_S=state.stop_state_S.at[slots_F].set(start, mode="drop"),
        budget_S=state.budget_S.at[slots_F].set(budgets_F, mode="drop"),
        active_S=state.active_S.at[slots_F].set(True, mode="drop"),
    )


def decode(model, dtype, steps, params, tables, state, temperature):
    """Samples up to `steps` tokens in every active slot; leaves early when none is active.

    Returns:
      (state, Report). Slots that are not active are left untouched.
    """
    next_state, hit, stop_ids = tables
    S = state.length_S.shape[0]

    def step(carry):
        i, state, report = carry
        active_S = state.active_S
        position_S = jnp.where(active_S, state.length_S, state.cache[0].length)
        hidden_Sx1xE, cache = transformer.forward(
            model, params, state.last_token_S[:, None], position_S[:, None], dtype=dtype, cache=state.cache
        )
        logits_SxV = transformer.unembed(params, hidden_Sx1xE[:, 0])
        uniforms_Sx2 = sampling.token_uniforms(state.key_S, state.length_S + 1)
        token_S, logprob_S, entropy_S = sampling.sample(logits_SxV, temperature, uniforms_Sx2)

        budget_S = state.budget_S - active_S
        is_end_S = jnp.any(token_S[:, None] == stop_ids, axis=1)
        stop_S = jnp.where(budget_S <= 0, Stop.BUDGET, Stop.RUNNING)
        stop_S = jnp.where(hit[state.stop_state_S, token_S], Stop.CODE, stop_S)
        stop_S = jnp.where(is_end_S, Stop.END, stop_S)
        stop_S = jnp.where(active_S, stop_S, Stop.RUNNING)
        state = state.replace(
            cache=cache,
            length_S=state.length_S + active_S,
            last_token_S=jnp.where(active_S, token_S, state.last_token_S),
            stop_state_S=jnp.where(
                active_S, next_state[state.stop_state_S, token_S].astype(jnp.int32), state.stop_state_S
            ),
            budget_S=budget_S,
            active_S=active_S & (stop_S == Stop.RUNNING),
        )
        report = Report(
            tokens_SxC=report.tokens_SxC.at[:, i].set(token_S),
            logprobs_SxC=report.logprobs_SxC.at[:, i].set(logprob_S),
            entropies_SxC=report.entropies_SxC.at[:, i].set(entropy_S),
            counts_S=report.counts_S + active_S,
            stops_S=jnp.maximum(report.stops_S, stop_S),
        )
        return i + 1, state, report

    zeros = jnp.zeros((S, steps))
    empty = Report(zeros.astype(jnp.int32), zeros, zeros, jnp.zeros(S, jnp.int32), jnp.zeros(S, jnp.int32))
    _, state, report = jax.lax.while_loop(
        lambda carry: (carry[0] < steps) & jnp.any(carry[1].active_S), step, (0, state, empty)
    )
    return state, report


def extend(
    model, dtype, params, state, slots_R, tokens_RxC, counts_R, last_tokens_R, budgets_R, resume_R, start
):
    """Appends `counts_R` tokens to the caches of some slots; where `resume_R`, a new segment begins.

    The tokens to append are the slot's last token and then the observation but for its own last token,
    which becomes the slot's last token when the segment begins. A slot beyond the last is dropped.
    """
    order = jnp.arange(tokens_RxC.shape[1])
    lengths_R = state.length_S.at[slots_R].get(mode="fill", fill_value=0)
    positions_RxC = jnp.where(order < counts_R[:, None], lengths_R[:, None] + order, state.cache[0].length)
    _, cache = transformer.forward(
        model, params, tokens_RxC, positions_RxC, dtype=dtype, cache=state.cache, rows_B=slots_R
    )
    resumed_R = jnp.where(resume_R, slots_R, state.length_S.shape[0])
    return DecodeState(
        cache=cache,
        length_S=state.length_S.at[slots_R].add(counts_R, mode="drop"),
        last_token_S=state.last_token_S.at[resumed_R].set(last_tokens_R, mode="drop"),
        key_S=state.key_S,
        stop_state_S=state.stop_state_S.at[resumed_R].set(start, mode="drop"),
        budget_S=state.budget_S.at[resumed_R].set(budgets_R, mode="drop"),
        active_S=state.active_S.at[resumed_R].set(True, mode="drop"),
    )


def release(state):
    """Stops every slot, so that the state can be used for other episodes."""
    return state.replace(active_S=jnp.zeros_like(state.active_S))


class Engine:
    """The functions above, compiled for one model, mesh and set of static sizes.

    Attributes:
      slots, chunk, prefill_rows, prompt_tokens, extend_rows, extend_tokens: the static sizes.
    """

    def __init__(self, model: ModelConfig, mesh, rollout, policy, table: StopTable, stop_ids):
        """`rollout` and `policy` are those parts of the config; `table` and `stop_ids` decide stops."""
        self.slots, self.chunk = rollout.slots, rollout.chunk
        self.prefill_rows, self.prompt_tokens = rollout.prefill_rows, rollout.prompt_tokens
        self.extend_rows, self.extend_tokens = rollout.extend_rows, rollout.extend_tokens
        self._start = table.start
        dtype, cache_dtype = jnp.dtype(policy.compute_dtype), jnp.dtype(policy.cache_dtype)
        rules = meshes.rollout_rules(model.kv_heads, mesh.shape["tensor"])
        self._scope = functools.partial(meshes.logical_axes, mesh, rules)
        whole, rows = meshes.replicated(mesh), meshes.rows(mesh)
        tensor_axis = dict(rules)["kv_heads"]
        cache = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), tensor_axis))
        state = DecodeState((cache,) * model.layers, rows, rows, rows, rows, rows, rows)
        self._tables = jax.device_put(
            (table.next_state, table.hit, np.asarray(stop_ids, np.int32)), (whole, whole, whole)
        )

        def compiled(function, *static, out, **kwargs):
            return jax.jit(functools.partial(function, *static), out_shardings=out, **kwargs)

        def empty():
            zeros = jnp.zeros(self.slots, jnp.int32)
            keys = jax.random.split(jax.random.key(0), self.slots)
            slot_cache = kv_cache.empty_cache(model, self.slots, rollout.context_tokens, cache_dtype)
            return DecodeState(slot_cache, zeros, zeros, keys, zeros, zeros, zeros.astype(bool))

        self._prefill = compiled(prefill, model, dtype, cache_dtype, out=(cache,) * model.layers)
        self._fork = compiled(fork, out=state, donate_argnums=0)
        self._decode = compiled(
            decode, model, dtype, self.chunk, out=(state, whole), donate_argnums=2
        )  # the report is gathered: every process of the mesh reads it
        self._extend = compiled(extend, model, dtype, out=state, donate_argnums=1)
        self._release = compiled(release, out=state, donate_argnums=0)
        with self._scope():
            self.state = compiled(empty, out=state)()

    def prefill(self, params, prompts: list[list[int]]):
        """Runs up to `prefill_rows` prompts; returns the pool that `fork` reads."""
        tokens = np.zeros((self.prefill_rows, self.prompt_tokens), np.int32)
        lengths = np.ones(self.prefill_rows, np.int32)
        for row, ids in enumerate(prompts):
            tokens[row, : len(ids)], lengths[row] = ids, len(ids)
        with self._scope():
            return self._prefill(params, tokens, lengths)

    def fork(self, pool, starts):
        """Starts episodes.

        Args:
          pool: from `prefill`.
          starts: at most `slots` tuples (slot, pool row, prompt ids, request, budget); a request is the
            five integers of `sampling.request_key`.
        """
        F = self.slots
        slots, rows = np.full(F, F, np.int32), np.zeros(F, np.int32)
        lengths, last, budgets = np.ones(F, np.int32), np.zeros(F, np.int32), np.zeros(F, np.int32)
        requests = np.zeros((F, 5), np.uint32)
        for i, (slot, row, ids, request, budget) in enumerate(starts):
            slots[i], rows[i], lengths[i], last[i] = slot, row, len(ids), ids[-1]
            requests[i], budgets[i] = request, budget
        with self._scope():
            self.state = self._fork(
                self.state, pool, slots, rows, lengths, last, requests, budgets, self._start
            )

    def decode(self, params, temperature: float) -> Report:
        """Runs a chunk; the report arrives asynchronously."""
        with self._scope():
            self.state, report = self._decode(params, self._tables, self.state, np.float32(temperature))
        return report

    def extend(self, params, continuations):
        """Appends observations and resumes their slots.

        Args:
          params: the policy in its rollout placement.
          continuations: tuples (slot, last token, observation ids, budget), any number.
        """
        for first in range(0, len(continuations), self.extend_rows):
            batch = continuations[first : first + self.extend_rows]
            feeds = [[last, *ids[:-1]] for _, last, ids, _ in batch]
            for begin in range(0, max(map(len, feeds)), self.extend_tokens):
                self._extend_piece(params, batch, feeds, begin)

    def _extend_piece(self, params, batch, feeds, begin):
        R, C, end = self.extend_rows, self.extend_tokens, begin + self.extend_tokens
        slots, tokens = np.full(R, self.slots, np.int32), np.zeros((R, C), np.int32)
        counts, last, budgets = np.zeros(R, np.int32), np.zeros(R, np.int32), np.zeros(R, np.int32)
        resume = np.zeros(R, bool)
        for i, ((slot, _, ids, budget), feed) in enumerate(zip(batch, feeds, strict=True)):
            piece = feed[begin:end]
            if piece:
                slots[i], counts[i], tokens[i, : len(piece)] = slot, len(piece), piece
                last[i], budgets[i], resume[i] = ids[-1], budget, len(feed) <= end
        with self._scope():
            self.state = self._extend(
                params, self.state, slots, tokens, counts, last, budgets, resume, self._start
            )

    def release(self):
        """Forgets all running episodes."""
        with self._scope():
            self.state = self._release(self.state)
