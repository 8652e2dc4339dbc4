"""Where a policy segment stops: the code-block automaton lifted from bytes to token ids."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import numpy as np

from taorl_jax.models.model_config import CheckpointError
from taorl_jax.tool_use.code_block import TABLE, State, symbols


@functools.partial(jax.tree_util.register_dataclass, data_fields=["next_state", "hit"], meta_fields=["start"])
@dataclasses.dataclass(frozen=True, eq=False)
class StopTable:
    """The automaton as two gathers a sampled token; a pytree, to be placed on the device.

    Attributes:
      next_state: [S, V] int8, the state after token v from state s.
      hit: [S, V] bool, whether the closing fence of a Python block is complete after that token.
      start: the state at the start of every policy segment.
    """

    next_state: np.ndarray
    hit: np.ndarray
    start: int


def build_stop_table(token_bytes: Sequence[bytes | None], vocab_size: int) -> StopTable:
    """Lifts the automaton to the ids of a policy.

    Args:
      token_bytes: by id, the bytes of each token; None for special tokens.
      vocab_size: V, the policy's vocabulary; ids beyond the tokenizer change no state.

    Raises:
      CheckpointError: the policy's vocabulary is smaller than the tokenizer's.
    """
    if vocab_size < len(token_bytes):
        raise CheckpointError(
            f"policy.checkpoint: its vocabulary ({vocab_size}) is smaller than its tokenizer's "
            f"({len(token_bytes)}); the tokenizer belongs to another model"
        )
    next_state_VxS = np.tile(np.arange(len(State), dtype=np.int8), (vocab_size, 1))
    spelled = [symbols(token) for token in token_bytes]
    lengths = np.array([len(spelling) for spelling in spelled], np.int64)
    starts = np.cumsum(lengths) - lengths
    flat = np.fromiter((symbol for spelling in spelled for symbol in spelling), np.int16)
    # Longest first, so that the tokens with an n-th symbol are a leading slice.
    order = np.argsort(-lengths, kind="stable")
    for position in range(lengths.max(initial=0)):
        ids = order[: np.count_nonzero(lengths > position)]
        read = flat[starts[ids] + position]
        next_state_VxS[ids] = TABLE[next_state_VxS[ids], read[:, None]]
    next_state = np.ascontiguousarray(next_state_VxS.T)
    return StopTable(next_state, next_state == State.HIT, start=int(State.LINE_START))
