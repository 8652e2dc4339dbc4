"""Supervised warm start: cross-entropy on the policy's tokens of traces, packed into fixed rows."""

import dataclasses
import random
from collections.abc import Iterator

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax.contrib import MuonDimensionNumbers, muon

from taorl_jax.data.tasks import make_instance
from taorl_jax.models.model_config import ModelConfig
from taorl_jax.models.tokenizer import Tokenizer
from taorl_jax.models.transformer import Decoder, forward, unembed
from taorl_jax.tool_use.observation import format_observation, observation_ids
from tools.quickstart_traces import Trace, make_trace

ROW = 128  # tokens
ROWS = 16  # a step
PEAK_LEARNING_RATE = 5e-3
WARM_UP = 20  # steps
OBSERVATION_LIMIT = 256  # characters and tokens; no trace comes near


@dataclasses.dataclass(frozen=True)
class Batch:
    """Packed traces; arrays [ROWS, ROW]. A segment is one trace, 0 is padding."""

    tokens: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    loss_mask: np.ndarray


def encode_trace(tokenizer: Tokenizer, text: str, trace: Trace, end: int) -> tuple[list[int], list[int]]:
    """(token ids, loss mask) of an episode, put together from pieces exactly as a rollout does it."""
    ids = tokenizer.prompt_ids(text)
    mask = [0] * len(ids)
    for turn, result in trace:
        policy, observation = tokenizer.encode(turn), []
        if result is None:
            policy = [*policy, end]
        else:
            shown = format_observation(result, OBSERVATION_LIMIT)
            observation = observation_ids(tokenizer, shown, OBSERVATION_LIMIT)
        ids += policy + observation
        mask += [1] * len(policy) + [0] * len(observation)
    return ids, mask


def encoded_traces(tokenizer: Tokenizer, end: int, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    """An endless stream over training problems."""
    index = 0
    while True:
        instance = make_instance(index, "train", seed)
        trace = make_trace(instance, random.Random(f"trace/{seed}/{index}"))
        yield encode_trace(tokenizer, instance.problem.text, trace, end)
        index += 1


def pack(traces: Iterator[tuple[list[int], list[int]]]) -> Iterator[Batch]:
    """Fills rows with whole traces, one after the other; a trace longer than a row is cut."""
    shape = (ROWS, ROW)
    ids, mask = next(traces)
    while True:
        batch = Batch(*(np.zeros(shape, np.int32) for _ in range(3)), np.zeros(shape, np.float32))
        row = used = segment = 0
        while row < ROWS:
            count = min(len(ids), ROW)
            if used + count > ROW:
                row, used, segment = row + 1, 0, 0
                continue
            place = (row, slice(used, used + count))
            segment += 1
            batch.tokens[place], batch.loss_mask[place] = ids[:count], mask[:count]
            batch.positions[place], batch.segments[place] = range(count), segment
            used += count
            ids, mask = next(traces)
        yield batch


def initial_params(config: ModelConfig, seed: int):
    """Random parameters. The decoder's own scale, 0.02, suits wide models; here 1 / sqrt(width) is 0.09."""
    token = jnp.zeros((1, 1), jnp.int32)
    boxed = Decoder(config).init(jax.random.key(seed), token, token)["params"]
    params = nn.meta.unbox(boxed)
    return jax.tree.map_with_path(lambda path, x: 4 * x if "kernel" in path[-1].key else x, params)


def _matrices(params):
    """Which axes of the stacked parameters are a matrix's input and output; None: not a matrix."""

    def axes(path, x):
        if "kernel" not in path[-1].key:
            return None
        inputs = 2 if path[-1].key == "out_kernel" else 1
        return MuonDimensionNumbers(tuple(range(1, 1 + inputs)), tuple(range(1 + inputs, x.ndim)))

    return jax.tree.map_with_path(axes, params)


def warm_start(config: ModelConfig, tokenizer: Tokenizer, end: int, steps: int, seed: int):
    """Trains from scratch; prints the loss (nats a token). Returns the scanned decoder's parameters.

    The optimiser is Muon for matrices, AdamW for the rest: at this size it learns to copy digits in a third
    of AdamW's steps. Small batches and many steps serve the same end.
    """
    warm_up = min(WARM_UP, steps // 2)
    schedule = optax.warmup_cosine_decay_schedule(0.0, PEAK_LEARNING_RATE, warm_up, steps)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        muon(
            schedule,
            weight_decay=0.01,
            consistent_rms=0.2,
            adam_learning_rate=lambda step: 0.6 * schedule(step),
            muon_weight_dimension_numbers=_matrices,
        ),
    )
    params = initial_params(config, seed)
    state = optimizer.init(params)

    @jax.jit
    def update(params, state, tokens, positions, segments, mask):
        def loss(params):
            hidden, _ = forward(config, params, tokens, positions, segment_ids_BxT=segments)
            logits = unembed(params, hidden[:, :-1])
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
            return jnp.sum(losses * mask[:, 1:]) / jnp.sum(mask[:, 1:])

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    batches = pack(encoded_traces(tokenizer, end, seed))
    for step in range(1, steps + 1):
        batch = next(batches)
        params, state, loss = update(
            params, state, batch.tokens, batch.positions, batch.segments, batch.loss_mask
        )
        if step % 50 == 0 or step == steps:
            print(f"step {step}/{steps}: loss {float(loss):.3f}", flush=True)
    return params
