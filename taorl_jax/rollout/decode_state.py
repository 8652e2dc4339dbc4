"""The sampler on the device: pure functions over one DecodeState, which is donated from call to call.

An episode lives in a slot. The invariant: the cache of slot s holds the episode's tokens [0, length_S[s]),
and last_token_S[s] is the next one, not in the cache yet. So nothing is ever run twice: `prefill` runs a
prompt but for its last token, `fork` copies it into the slots of its samples, `decode` samples, and `extend`
appends the observation of a tool to some slots without touching their history.
"""

import enum

import flax.struct
import jax
import jax.numpy as jnp

from taorl_jax.models import kv_cache, transformer
from taorl_jax.rollout import sampling


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
    lengths_S: jax.Array  # int32: tokens in the cache after it


def empty_state(model, slots: int, blocks: int, block: int, dtype) -> DecodeState:
    """No slot is active."""
    zeros = jnp.zeros(slots, jnp.int32)
    keys = jax.random.split(jax.random.key(0), slots)
    cache = kv_cache.empty_cache(model, slots, blocks, block, dtype)
    return DecodeState(cache, zeros, zeros, keys, zeros, zeros, zeros.astype(bool))


def prefill(model, dtype, params, pool, tokens_PxC, begin, lengths_P):
    """Runs the positions [begin, begin + C) of P prompts, but never a prompt's last token.

    Prompts pass in pieces of one shape, so that none of a prompt's numbers depends on its neighbours.

    Args:
      model: ModelConfig.
      dtype: compute type.
      params: in the layout of `policy_params`.
      pool: caches that hold the positions before `begin`; donated.
      tokens_PxC: int32.
      begin: int32 scalar.
      lengths_P: int32, of the whole prompts.

    Returns:
      The pool.
    """
    order = begin + jnp.arange(tokens_PxC.shape[1])
    positions_PxC = jnp.where(order < lengths_P[:, None] - 1, order, pool[0].length)
    return transformer.forward(model, params, tokens_PxC, positions_PxC, dtype=dtype, cache=pool)[1]


def fork(state, pool, slots_F, rows_F, lengths_F, last_tokens_F, requests_Fx5, budgets_F, start):
    """Starts episodes: copies prompts from the pool into slots (a slot beyond the last is dropped)."""
    blocks = min(state.cache[0].blocks, pool[0].blocks)

    def copy(slots, prompts):
        return jax.tree.map(
            lambda to, source: to.at[slots_F, :, :blocks].set(source[rows_F, :, :blocks], mode="drop"),
            slots,
            prompts,
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


def decode(model, dtype, steps, truncation, params, tables, state, temperature):
    """Samples up to `steps` tokens in every active slot; leaves early when none is active.

    Returns:
      (state, Report). Slots that are not active are left untouched.
    """
    next_state, hit, stop_ids = tables
    S = state.length_S.shape[0]
    # All of the chunk at once: a running slot gains one token a step.
    uniforms_SxCx2 = sampling.token_uniforms(state.key_S, state.length_S[:, None] + 1 + jnp.arange(steps))

    def step(carry):
        i, state, report = carry
        active_S = state.active_S
        position_S = jnp.where(active_S, state.length_S, state.cache[0].length)
        hidden_Sx1xE, cache = transformer.forward(
            model, params, state.last_token_S[:, None], position_S[:, None], dtype=dtype, cache=state.cache
        )
        logits_SxV = transformer.unembed(params, hidden_Sx1xE[:, 0])
        token_S, logprob_S, entropy_S = sampling.sample(
            logits_SxV, temperature, uniforms_SxCx2[:, i], truncation
        )

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
            lengths_S=state.length_S,
        )
        return i + 1, state, report

    zeros = jnp.zeros((S, steps))
    none_S = jnp.zeros(S, jnp.int32)
    empty = Report(zeros.astype(jnp.int32), zeros, zeros, none_S, none_S, state.length_S)
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
