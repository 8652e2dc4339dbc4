"""The filters against groups worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from taorl_jax.algorithms.filtering import select

TAORL = {"criterion1": True, "criterion2": True, "drop_void": True, "drop_overlong": True, "min_group": 2}
TIR = {"criterion1": False, "criterion2": False, "drop_void": False, "drop_overlong": False, "min_group": 0}


def run(right, judged=None, failed=None, void=None, overlong=None, **switches):
    """Groups as strings, one character a rollout, `1` for true."""
    groups = len(right)
    size = len(right[0])
    columns = [right, judged or ["1" * size] * groups]
    columns += [column or ["0" * size] * groups for column in (failed, void, overlong)]
    return select(
        *(np.array([list(row) for row in column]) == "1" for column in columns), **{**TAORL, **switches}
    )


def kept(selection):
    return ["".join("01"[flag] for flag in row) for row in selection.keep_NxG.astype(int)]


def reasons(selection):
    return {reason: count for reason, count in selection.dropped.items() if count}


def test_criterion_2_drops_groups_without_contrast():
    selection = run(["1111", "0000", "1100"])
    assert kept(selection) == ["0000", "0000", "1111"]
    assert selection.group_kept_N.tolist() == [False, False, True]
    assert reasons(selection) == {"all_right": 1, "all_wrong": 1}


def test_criterion_1_drops_trajectories_whose_calls_all_failed():
    selection = run(["1100"], failed=["0001"])
    assert kept(selection) == ["1110"]
    assert reasons(selection) == {"all_failed": 1}


def test_pass_rate_counts_failed_void_and_overlong_rollouts():
    # over the clean rollouts alone this group would be all right
    assert reasons(run(["1110"], failed=["0001"])) == {"all_failed": 1, "uniform_after_drops": 1}
    assert kept(run(["1110"], failed=["0001"])) == ["0000"]
    # over all rollouts the group is all wrong, and that is its only reason
    assert reasons(run(["0000"], failed=["1100"])) == {"all_wrong": 1}


def test_contrast_is_not_demanded_again_without_criterion_2():
    selection = run(["1110"], failed=["0001"], criterion2=False)
    assert kept(selection) == ["1110"]
    assert reasons(selection) == {"all_failed": 1}


def test_a_trajectory_counts_under_one_reason():
    # rollouts 2, 3, 4: all three flags; void and overlong; overlong
    flags = {"failed": ["00100"], "void": ["00110"], "overlong": ["00111"]}
    selection = run(["10101"], **flags)
    assert kept(selection) == ["11000"]
    assert reasons(selection) == {"all_failed": 1, "void": 1, "overlong": 1}
    assert reasons(run(["10101"], **flags, criterion1=False)) == {"void": 2, "overlong": 1}
    assert reasons(run(["10101"], **flags, criterion1=False, drop_void=False)) == {"overlong": 3}


def test_unknown_is_neither_right_nor_wrong():
    # the second rollout's verdict is missing: what stands in `right` for it must not be read
    assert reasons(run(["1011", "0100"], judged=["1011", "1011"])) == {
        "unknown": 2, "all_right": 1, "all_wrong": 1,
    }  # fmt: skip
    assert kept(run(["1001"], judged=["1011"])) == ["1011"]


def test_small_groups():
    selection = run(["1010"], overlong=["0111"], min_group=2)
    assert reasons(selection) == {"too_small": 1}
    assert kept(run(["1010"], overlong=["0011"], min_group=2)) == ["1100"]
    assert reasons(run(["1000"], judged=["1100"], min_group=3)) == {"unknown": 2, "too_small": 1}


def test_group_without_any_verdict():
    for switches in (TAORL, TIR):
        selection = run(["0000"], judged=["0000"], **switches)
        assert reasons(selection) == {"unknown": 4, "too_small": 1}
        assert not selection.group_kept_N.any()


def test_all_of_a_group_void_without_criterion_2():
    selection = run(["1010"], void=["1111"], criterion2=False)
    assert reasons(selection) == {"void": 4, "uniform_after_drops": 1}
    assert not selection.group_kept_N.any()


def test_with_every_switch_off_all_that_was_judged_is_kept():
    flags = {"failed": ["1010"] * 3, "void": ["0110"] * 3, "overlong": ["1111"] * 3}
    selection = run(["1111", "0000", "1000"], judged=["1111", "1111", "1101"], **flags, **TIR)
    assert kept(selection) == ["1111", "1111", "1101"]
    assert reasons(selection) == {"unknown": 1}
    assert selection.group_kept_N.all()


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="one shape"):
        select(*[np.zeros((2, 3), bool)] * 4, np.zeros((3, 2), bool), **TAORL)


FLAGS = arrays(bool, (5, 4, 6))
SWITCHES = st.fixed_dictionaries(
    {name: st.booleans() for name in ("criterion1", "criterion2", "drop_void", "drop_overlong")}
    | {"min_group": st.integers(0, 4)}
)


@given(flags=FLAGS, switches=SWITCHES, rollouts=st.permutations(range(6)), groups=st.permutations(range(4)))
@settings(max_examples=150, deadline=None)
def test_order_of_rollouts_and_groups_does_not_matter(flags, switches, rollouts, groups):
    plain = select(*flags, **switches)
    moved = select(*flags[:, groups][:, :, rollouts], **switches)
    np.testing.assert_array_equal(moved.keep_NxG, plain.keep_NxG[groups][:, rollouts])
    assert moved.dropped == plain.dropped


@given(flags=FLAGS, switches=SWITCHES)
@settings(max_examples=150, deadline=None)
def test_every_group_is_kept_or_counted_once(flags, switches):
    selection = select(*flags, **switches)
    right, judged = flags[:2]
    keep, dropped = selection.keep_NxG, selection.dropped
    lost = sum(dropped[name] for name in ("all_right", "all_wrong", "too_small", "uniform_after_drops"))
    assert lost + selection.group_kept_N.sum() == 4
    assert not keep[~judged].any() and (keep.any(1) == selection.group_kept_N).all()
    if switches["criterion2"]:
        assert ((keep & right).any(1) == (keep & ~right).any(1)).all()
