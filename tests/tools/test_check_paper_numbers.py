"""The slips of the paper's table, found again; the rest of it is whole numbers of successes."""

import numpy as np
import pytest

from taorl_jax.evaluation.statistics import avg_at_k, paired_difference, pass_at_k
from tools.check_paper_numbers import (
    DELTAS,
    PROBLEMS,
    SAMPLES,
    TABLE,
    check_cells,
    check_deltas,
)


def test_the_pasted_cell_and_the_rounding_are_the_only_impossible_cells():
    found = [(f.row, f.benchmark, f.metric, f.printed) for f in check_cells()]
    assert found == [
        ("base", "Minerva", "Avg@16", 5.00),
        ("base", "Minerva", "Pass@16", 36.67),
        ("SimpleTIR", "HMMT25", "Avg@16", 16.66),  # 80 of 480 is 16.67
    ]
    assert all("the whole cell is that of AIME24" in finding.what for finding in check_cells()[:2])


def test_the_deltas_against_other_rows_are_found():
    aime, hmmt = check_deltas()
    assert (aime.benchmark, aime.metric, aime.printed) == ("AIME25", "Pass@16", 20.00)
    assert aime.what == "TAO-RL minus SimpleTIR is +0.00; this is TAO-RL minus base"  # a tie, in truth
    assert (hmmt.benchmark, hmmt.metric, hmmt.printed) == ("HMMT25", "Pass@16", 6.67)
    assert hmmt.what == "TAO-RL minus SimpleTIR is +10.00; this is TAO-RL minus AEPO"


@pytest.mark.parametrize("row", ["SimpleTIR", "TAO-RL"])
def test_our_arithmetic_prints_the_paper_s_numbers_from_grids_of_its_sizes(row):
    for (_, problems), (average, passed) in zip(PROBLEMS.items(), TABLE[row], strict=True):
        right = grid(problems, average, passed)
        everything = np.ones_like(right)
        assert 100 * avg_at_k(right, everything).value == pytest.approx(average, abs=0.0101)
        assert 100 * pass_at_k(right, everything, SAMPLES).value == pytest.approx(passed, abs=0.0051)


def test_a_paired_difference_of_grids_is_the_printed_delta():
    place = list(PROBLEMS).index("MATH500")
    ours, theirs = (grid(500, *TABLE[row][place]).mean(1) for row in ("TAO-RL", "SimpleTIR"))
    assert 100 * paired_difference(theirs, ours).value == pytest.approx(DELTAS[place][0], abs=0.011)


def grid(problems, average, passed):
    """A grid of successes, [N, 16] bool, with this Avg@16 and Pass@16 in percent: solved problems first."""
    total, solved = round(average * problems * SAMPLES / 100), round(passed * problems / 100)
    counts = np.full(solved, total // solved) + (np.arange(solved) < total % solved)
    right = np.zeros((problems, SAMPLES), bool)
    for problem, count in enumerate(counts):
        right[problem, :count] = True
    return right
