"""Trajectories packed into rows of one length, several to a row, told apart by segment ids."""

import dataclasses
from collections.abc import Sequence

import flax.struct
import jax
import numpy as np

from taorl_jax.algorithms.loss import token_weight
from taorl_jax.rollout.trajectory import Trajectory


@flax.struct.dataclass
class Packed:
    """N micro-batches of M rows of T tokens; padding has segment id 0 and a False mask.

    Attributes:
      tokens, positions, segment_ids: int32 [N, M, T].
      loss_mask: bool [N, M, T], the policy's tokens.
      weights: float32 [N, M, T], what a token weighs in the loss' sum (`loss.token_weight`).
      denominators: float32 [N, M], what a row adds to the loss' denominator.
      old_logprobs: float32 [N, M, T], nats, of the policy before the step's updates.
      advantages: float32 [N, M, T], reshaped.
      sampler_logprobs: float32 [N, M, T], nats, as recorded; None where the loss does not need them.
      reference_logprobs: float32 [N, M, T], nats, of the reference policy; None likewise.
    """

    tokens: jax.Array
    positions: jax.Array
    segment_ids: jax.Array
    loss_mask: jax.Array
    weights: jax.Array
    denominators: jax.Array
    old_logprobs: jax.Array
    advantages: jax.Array
    sampler_logprobs: jax.Array | None = None
    reference_logprobs: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where each trajectory lies: rows[i], from offsets[i], lengths[i] tokens."""

    rows: list[int]
    offsets: list[int]
    lengths: list[int]
    shape: tuple[int, int, int]  # [N, M, T] of the static arrays
    micro_batches: int  # of the N, those that hold a trajectory

    @property
    def padding_share(self) -> float:
        """Share of the positions computed that hold no token."""
        return 1.0 - sum(self.lengths) / (self.micro_batches * self.shape[1] * self.shape[2])

    def spread(self, values: Sequence[np.ndarray], dtype) -> np.ndarray:
        """One array a trajectory -> [N, M, T], zero elsewhere."""
        N, M, T = self.shape
        out = np.zeros((N * M, T), dtype)
        for row, offset, value in zip(self.rows, self.offsets, values, strict=True):
            out[row, offset : offset + len(value)] = value
        return out.reshape(self.shape)

    def gather(self, array: np.ndarray) -> list[np.ndarray]:
        """[N, M, T] -> one array a trajectory."""
        flat = np.asarray(array).reshape(-1, self.shape[2])
        places = zip(self.rows, self.offsets, self.lengths, strict=True)
        return [flat[row, offset : offset + length] for row, offset, length in places]


def batch_shape(rows: int, row_tokens: int, micro_rows: int) -> tuple[int, int, int]:
    """[N, M, T] of arrays with at least `rows` rows."""
    return -(-rows // micro_rows), micro_rows, row_tokens


def lay_out(lengths: Sequence[int], rows: int, row_tokens: int, micro_rows: int) -> Layout:
    """Packs by best fit, longest first, then spreads full and less full rows evenly over the micro-batches.

    Args:
      lengths: tokens of each trajectory, at most `row_tokens`.
      rows: rows of the static arrays, rounded up to whole micro-batches; enough for one trajectory a row.
      row_tokens: T.
      micro_rows: M; consecutive rows of a micro-batch lie on the same device.
    """
    room: list[int] = []
    places = [(0, 0)] * len(lengths)
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = [row for row, free in enumerate(room) if free >= lengths[i]]
        row = min(fitting, key=lambda row: (room[row], row)) if fitting else len(room)
        if row == len(room):
            room.append(row_tokens)
        places[i] = (row, row_tokens - room[row])
        room[row] -= lengths[i]
    shape = batch_shape(rows, row_tokens, micro_rows)
    micro_batches = -(-len(room) // micro_rows)
    # Fullest first, dealt like cards: micro-batches, and the devices within one, get about equal work.
    dealt = {}
    for turn, row in enumerate(sorted(range(len(room)), key=lambda row: (room[row], row))):
        dealt[row] = turn % micro_batches * micro_rows + turn // micro_batches
    rows_of, offsets = [dealt[row] for row, _ in places], [offset for _, offset in places]
    return Layout(rows_of, offsets, list(lengths), shape, micro_batches)


def pack(
    trajectories: Sequence[Trajectory],
    layout: Layout,
    aggregation: str = "token_mean",
    constant: int = 1,
) -> Packed:
    """The packed batch, its log-probs and advantages still zero; for the weights see `token_weight`."""
    counter: dict[int, int] = {}
    segments, weights = [], []
    denominators = np.zeros(layout.shape[0] * layout.shape[1], np.float32)
    for trajectory, row, length in zip(trajectories, layout.rows, layout.lengths, strict=True):
        counter[row] = counter.get(row, 0) + 1
        segments.append(np.full(length, counter[row], np.int32))
        mask = trajectory.loss_mask
        weight, share = token_weight(aggregation, int(mask.sum()), constant)
        weights.append(weight * mask)
        denominators[row] += share
    zeros = np.zeros(layout.shape, np.float32)
    return Packed(
        tokens=layout.spread([t.tokens for t in trajectories], np.int32),
        positions=layout.spread([np.arange(n) for n in layout.lengths], np.int32),
        segment_ids=layout.spread(segments, np.int32),
        loss_mask=layout.spread([t.loss_mask for t in trajectories], bool),
        weights=layout.spread(weights, np.float32),
        denominators=denominators.reshape(layout.shape[:2]),
        old_logprobs=zeros,
        advantages=zeros,
    )
