import math

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taorl_jax.reporting.curves import PANELS, plot_arms, plot_curves
from taorl_jax.reporting.figure import ROWS, grid, running_mean, series

ROW = {
    "train/reward_mean": 0.5,
    "train/grad_norm": 0.3,
    "train/entropy": 0.4,
    "rollout/entropy": 0.4,
    "rollout/entropy_post_tool": 0.6,
    "rollout/valid_code_ratio": 0.8,
    "rollout/response_tokens": 60.0,
    "rollout/observation_tokens": 20.0,
    "filter/dropped_all_failed": 0.1,
    "filter/dropped_void": 0.05,
    "filter/dropped_overlong": 0.0,
    "filter/dropped_unknown": 0.0,
    "filter/groups_all_right": 0.2,
    "filter/groups_all_wrong": 0.1,
}
EVALUATION = {
    "eval/avg_at_k": 0.5,
    "eval/avg_at_k_low": 0.4,
    "eval/avg_at_k_high": 0.6,
    "eval/pass_at_k": 0.9,
}


def run(steps):
    """Rows as a run writes them: an evaluation before the first step and after the last."""
    rows = [{"step": 0} | EVALUATION] + [{"step": step} | ROW for step in range(1, steps + 1)]
    return [*rows[:-1], rows[-1] | EVALUATION]


def height(path):
    return matplotlib.image.imread(path).shape[0]


@pytest.mark.filterwarnings("error")  # a layout that does not fit is a warning of matplotlib's
@pytest.mark.parametrize("steps", [0, 1, 5, 60])
def test_runs_of_any_length_are_drawn(tmp_path, steps):
    plot_curves(run(steps), tmp_path / "curves.png", title="a run")
    assert [p.name for p in tmp_path.iterdir()] == ["curves.png"]
    assert matplotlib.image.imread(tmp_path / "curves.png").shape[1] == 1600  # 10 inches at 160 dots


@pytest.mark.filterwarnings("error")
def test_what_was_not_measured_takes_no_place(tmp_path):
    plot_curves(run(5), tmp_path / "all.png")  # 7 panels in 3 rows
    few = [{"step": 1, "train/reward_mean": 0.1, "train/grad_norm": math.nan, "train/entropy": None}]
    plot_curves(few, tmp_path / "one.png")  # 1 panel
    assert height(tmp_path / "all.png") > 2 * height(tmp_path / "one.png")


def test_nothing_to_plot_is_said(tmp_path):
    with pytest.raises(ValueError, match="nothing to plot"):
        plot_curves([{"step": 1, "timing/rollout_seconds": 2.0}], tmp_path / "curves.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("error")
def test_arms_with_and_without_evaluations_are_compared(tmp_path):
    plot_arms({"taorl": run(5), "tir": run(3), "untested": [{"step": 1} | ROW]}, tmp_path / "arms.png")
    assert matplotlib.image.imread(tmp_path / "arms.png").shape[1] == 1600
    with pytest.raises(ValueError, match="1 to 8 runs, not 9"):
        plot_arms({str(i): run(2) for i in range(9)}, tmp_path / "nine.png")


def test_a_series_skips_rows_without_a_finite_value():
    rows = [{"step": 0}, {"step": 1, "x": 0.5}, {"step": 2, "x": None}, {"step": 3, "x": math.inf}]
    steps, values = series([*rows, {"step": 4, "x": 2}], "x")
    np.testing.assert_array_equal(steps, [1, 4])
    np.testing.assert_array_equal(values, [0.5, 2])


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.integers(1, 8))
@settings(deadline=None)
def test_running_mean_is_the_mean_of_the_last_values(values, window):
    expected = [np.mean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]
    np.testing.assert_allclose(running_mean(np.array(values), window), expected, atol=1e-9)


@pytest.mark.parametrize("panels", ROWS)
def test_the_grid_has_as_many_panels_as_asked_for(panels):
    assert len(grid(panels, "")[1]) == panels <= len(PANELS)
