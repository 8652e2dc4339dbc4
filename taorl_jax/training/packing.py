"""Trajectories packed into rows of one length, several to a row, told apart by segment ids."""

import dataclasses
from collections.abc import Sequence

import flax.struct
import jax
import numpy as np

from taorl_jax.rollout.trajectory import Trajectory


@flax.struct.dataclass
class Packed:
    """N micro-batches of M rows of T tokens; padding has segment id 0 and a False mask.

    Attributes:
      tokens, positions, segment_ids: int32 [N, M, T].
      loss_mask: bool [N, M, T], the policy's tokens.
      old_logprobs: float32 [N, M, T], nats, of the policy before the step's updates.
      advantages: float32 [N, M, T], reshaped.
    """

    tokens: jax.Array
    positions: jax.Array
    segment_ids: jax.Array
    loss_mask: jax.Array
    old_logprobs: jax.Array
    advantages: jax.Array


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


def lay_out(lengths: Sequence[int], rows: int, row_tokens: int, micro_rows: int) -> Layout:
    """Packs by first fit, longest first; equal lengths keep their order.

    Args:
      lengths: tokens of each trajectory, at most `row_tokens`.
      rows: rows of the static arrays, rounded up to whole micro-batches; enough for one trajectory a row.
      row_tokens: T.
      micro_rows: M.
    """
    room: list[int] = []
    placed_rows, offsets = [0] * len(lengths), [0] * len(lengths)
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = next((row for row, free in enumerate(room) if free >= lengths[i]), len(room))
        if row == len(room):
            room.append(row_tokens)
        placed_rows[i], offsets[i] = row, row_tokens - room[row]
        room[row] -= lengths[i]
    shape = (-(-rows // micro_rows), micro_rows, row_tokens)
    return Layout(placed_rows, offsets, list(lengths), shape, -(-len(room) // micro_rows))


def pack(trajectories: Sequence[Trajectory], layout: Layout) -> Packed:
    """The packed batch, its log-probs and advantages still zero."""
    counter: dict[int, int] = {}
    segments = []
    for row, length in zip(layout.rows, layout.lengths, strict=True):
        counter[row] = counter.get(row, 0) + 1
        segments.append(np.full(length, counter[row], np.int32))
    zeros = np.zeros(layout.shape, np.float32)
    return Packed(
        tokens=layout.spread([t.tokens for t in trajectories], np.int32),
        positions=layout.spread([np.arange(n) for n in layout.lengths], np.int32),
        segment_ids=layout.spread(segments, np.int32),
        loss_mask=layout.spread([t.loss_mask for t in trajectories], bool),
        old_logprobs=zeros,
        advantages=zeros,
    )
