"""Pictures of a run and of several runs side by side, from the rows of `metrics.jsonl`.

What a run did not measure is left out, down to whole panels.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from taorl_jax.reporting import figure as fig
from taorl_jax.reporting.figure import BLUE, GREEN, GREY, INK, ORANGE, PINK, RED, SKY, series

ARM_COLOURS = (BLUE, RED, GREEN, PINK, ORANGE, SKY, GREY, INK)
ARM_MARKERS = "osD^vPX*"

DROPPED = (
    ("filter/dropped_all_failed", "all calls failed", RED),
    ("filter/dropped_void", "void turn", ORANGE),
    ("filter/dropped_overlong", "overlong", SKY),
    ("filter/dropped_unknown", "unknown verdict", GREY),
)
SMOOTHED_FROM = 40  # steps


def plot_curves(metrics_rows: list[dict], path, *, title: str = ""):
    """Draws one run: held-out success, reward, entropy, valid code, gradient norm, filters, lengths.

    Args:
      metrics_rows: rows with `step` and metrics; evaluations may have rows of their own.
      path: where the PNG goes.
      title: printed above; none if empty.

    Raises:
      ValueError: no row holds any metric that this figure knows.
    """
    panels = [draw for draw, names in PANELS if any(series(metrics_rows, name)[0].size for name in names)]
    figure, axes = fig.grid(len(panels), title)
    last_step = max(row["step"] for row in metrics_rows)
    for ax, draw in zip(axes, panels, strict=True):
        draw(ax, metrics_rows)
        ax.set_xlim(-0.02 * last_step, 1.02 * last_step + (last_step == 0))
    if last_step >= SMOOTHED_FROM:
        note = "thin lines: each step; thick lines: mean of the last 5 % of the steps"
        figure.supxlabel(note, x=0.99, ha="right", fontsize=8, color="#777777")
    fig.save(figure, path)


def plot_arms(runs: dict[str, list[dict]], path, *, title: str = ""):
    """Compares runs: held-out Avg@K with its interval, and training reward, one colour and mark a run.

    Args:
      runs: name -> rows of `metrics.jsonl`; at most 8 runs.
      path: where the PNG goes.
      title: printed above; none if empty.

    Raises:
      ValueError: no runs, or more than can be told apart.
    """
    if not 1 <= len(runs) <= len(ARM_COLOURS):
        raise ValueError(f"plot_arms compares 1 to {len(ARM_COLOURS)} runs, not {len(runs)}")
    figure, (heldout, reward) = fig.grid(2, title)
    fig.dress(heldout, "Held-out success, Avg@K", percent=True)
    heldout.set_ylim(auto=True)
    fig.dress(reward, "Training reward, mean of the step")
    for (name, rows), colour, marker in zip(runs.items(), ARM_COLOURS, ARM_MARKERS, strict=False):
        _band(heldout, rows, colour, alpha=0.1)
        heldout.plot(*series(rows, "eval/avg_at_k"), color=colour, marker=marker, ms=4.5, label=name)
        _curve(reward, rows, "train/reward_mean", colour)
    handles, labels = heldout.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4 if len(runs) > 5 else 5, frameon=False)
    fig.save(figure, path)


def _heldout(ax: Axes, rows):
    fig.dress(ax, "Held-out success", percent=True)
    _band(ax, rows, BLUE, alpha=0.18)
    avg = "Avg@K and its interval" if series(rows, "eval/avg_at_k_low")[0].size else "Avg@K"
    for name, label, colour, marker, offset in (
        ("eval/avg_at_k", avg, BLUE, "o", -16),
        ("eval/pass_at_k", "Pass@K", ORANGE, "s", 7),
    ):
        steps, values = series(rows, name)
        if not steps.size:
            continue
        ax.plot(steps, values, color=colour, marker=marker, ms=4.5, label=label)
        for i in {0, len(steps) - 1}:
            mark = ax.annotate(
                f"{values[i]:.0%}", (steps[i], values[i]), (0, offset), textcoords="offset points"
            )
            mark.set(color=colour, fontsize=9, fontweight="bold", ha="right" if i else "left")
    ax.set_ylim(-0.02, 1.12)
    ax.set_yticks(np.linspace(0, 1, 6))
    fig.legend(ax, loc="lower right")


def _reward(ax: Axes, rows):
    fig.dress(ax, "Training reward, mean of the step")
    _curve(ax, rows, "train/reward_mean", BLUE)


def _entropy(ax: Axes, rows):
    fig.dress(ax, "Entropy of the policy (nats)")
    _curve(ax, rows, "train/entropy", GREY, "in the update", linestyle="--")
    _curve(ax, rows, "rollout/entropy", BLUE, "all tokens")
    _curve(ax, rows, "rollout/entropy_post_tool", ORANGE, "after a valid call")
    ax.set_ylim(bottom=0)
    fig.legend(ax)


def _valid_code(ax: Axes, rows):
    fig.dress(ax, "Valid calls per turn", percent=True)
    _curve(ax, rows, "rollout/valid_code_ratio", GREEN)


def _grad_norm(ax: Axes, rows):
    fig.dress(ax, "Gradient norm")
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_locator(NullLocator())
    _curve(ax, rows, "train/grad_norm", INK)


def _filtered(ax: Axes, rows):
    fig.dress(ax, "Filtered out: trajectories (areas), groups (lines)", percent=True)
    dropped = [(name, label, colour) for name, label, colour in DROPPED if series(rows, name)[0].size]
    kept_rows = [row for row in rows if any(row.get(name) is not None for name, _, _ in dropped)]
    if dropped:
        shares_RxN = [[row.get(name) or 0.0 for row in kept_rows] for name, _, _ in dropped]
        steps = [row["step"] for row in kept_rows]
        ax.stackplot(
            steps, shares_RxN, labels=[d[1] for d in dropped], colors=[d[2] for d in dropped], alpha=0.8, lw=0
        )
    _curve(ax, rows, "filter/groups_all_right", INK, "groups all right", linestyle="-")
    _curve(ax, rows, "filter/groups_all_wrong", INK, "groups all wrong", linestyle=":")
    fig.legend(ax, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _lengths(ax: Axes, rows):
    fig.dress(ax, "Response length (tokens)")
    _curve(ax, rows, "rollout/response_tokens", BLUE, "by the policy")
    _curve(ax, rows, "rollout/observation_tokens", ORANGE, "by the tool")
    ax.set_ylim(bottom=0)
    fig.legend(ax)


def _curve(ax: Axes, rows, name: str, colour: str, label: str = "_", *, linestyle: str = "-"):
    """A metric over steps; long series as a faint line under their running mean."""
    steps, values = series(rows, name)
    if not steps.size:
        return
    if len(values) >= SMOOTHED_FROM:
        ax.plot(steps, values, color=colour, alpha=0.3, lw=0.8)
        values = fig.running_mean(values, len(values) // 20)
    marker = "." if len(values) == 1 else None
    ax.plot(steps, values, color=colour, label=label, linestyle=linestyle, marker=marker)


def _band(ax: Axes, rows, colour: str, alpha: float):
    (steps, low), (steps_high, high) = series(rows, "eval/avg_at_k_low"), series(rows, "eval/avg_at_k_high")
    if steps.size and np.array_equal(steps, steps_high):
        ax.fill_between(steps, low, high, color=colour, alpha=alpha, lw=0)


# Every panel, in reading order, with the metrics of which at least one must be there.
PANELS = (
    (_heldout, ("eval/avg_at_k", "eval/pass_at_k")),
    (_reward, ("train/reward_mean",)),
    (_entropy, ("rollout/entropy", "rollout/entropy_post_tool", "train/entropy")),
    (_valid_code, ("rollout/valid_code_ratio",)),
    (_grad_norm, ("train/grad_norm",)),
    (_filtered, (*(name for name, _, _ in DROPPED), "filter/groups_all_right", "filter/groups_all_wrong")),
    (_lengths, ("rollout/response_tokens", "rollout/observation_tokens")),
)
