"""Packing: nothing is lost, nothing overlaps, and segments are told apart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taorl_jax.rollout.trajectory import Trajectory
from taorl_jax.training.packing import lay_out, pack

lengths_lists = st.lists(st.integers(1, 20), min_size=1, max_size=30)


@given(lengths_lists, st.integers(1, 4))
def test_gather_undoes_spread_and_nothing_overlaps(lengths, micro_rows):
    layout = lay_out(lengths, rows=len(lengths), row_tokens=20, micro_rows=micro_rows)
    values = [np.arange(n) + 100 * i + 1 for i, n in enumerate(lengths)]
    spread = layout.spread(values, np.int64)
    for value, again in zip(values, layout.gather(spread), strict=True):
        np.testing.assert_array_equal(value, again)
    assert (spread > 0).sum() == sum(lengths)
    assert not spread[layout.micro_batches :].any(), "micro-batches that are not run must be empty"


@given(lengths_lists)
def test_rows_are_filled_first_fit_longest_first(lengths):
    layout = lay_out(lengths, rows=len(lengths), row_tokens=20, micro_rows=1)
    used = np.bincount(layout.rows, weights=lengths)
    assert (used <= 20).all()
    # Of first fit, at most one row is half empty or emptier (else its content would have fit an earlier one).
    assert (used <= 10).sum() <= 1


def test_packed_columns_by_hand():
    """Lengths 3, 2, 2 into rows of 5: the first two share a row, in the order of their lengths."""
    trajectories = []
    for i, tokens in enumerate([[1, 2], [3, 4, 5], [6, 7]]):
        t = Trajectory(i, 0, tokens[:1])
        t.append_policy(tokens[1:], [-1.0] * (len(tokens) - 1), [0.0] * (len(tokens) - 1))
        trajectories.append(t)
    layout = lay_out([2, 3, 2], rows=3, row_tokens=5, micro_rows=2)
    packed = pack(trajectories, layout)
    assert layout.shape == (2, 2, 5)
    assert layout.micro_batches == 1
    assert packed.tokens[0].tolist() == [[3, 4, 5, 1, 2], [6, 7, 0, 0, 0]]
    assert packed.segment_ids[0].tolist() == [[2, 2, 2, 1, 1], [1, 1, 0, 0, 0]]
    assert packed.positions[0].tolist() == [[0, 1, 2, 0, 1], [0, 1, 0, 0, 0]]
    assert packed.loss_mask[0].astype(int).tolist() == [[0, 1, 1, 0, 1], [0, 1, 0, 0, 0]]
    assert layout.padding_share == pytest.approx(0.3)  # 3 of 10
