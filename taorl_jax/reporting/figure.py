"""What the figures share: reading a metric, the look of a panel, the grid, saving.

Figures are made without pyplot, so that nothing global is touched and no display is needed.
"""

import io
import math
import pathlib

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from taorl_jax.training.durable_files import write_atomically

# Okabe & Ito (2008), readable with any colour vision.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PINK, SKY, GREY, INK = "#CC79A7", "#56B4E9", "#8C8C8C", "#333333"
ROWS = {1: (1,), 2: (2,), 3: (3,), 4: (2, 2), 5: (2, 3), 6: (3, 3), 7: (2, 3, 2)}  # panels: panels a row


def series(rows: list[dict], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values ([N] float64 each) of the rows that hold a finite value of this metric."""
    points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    points = [point for point in points if math.isfinite(point[1])]
    steps, values = np.array(points, np.float64).reshape(-1, 2).T
    return steps, values


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last `window` values (fewer at the start); same shape as `values`."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    stop = np.arange(1, len(values) + 1)
    start = np.maximum(stop - window, 0)
    return (sums[stop] - sums[start]) / (stop - start)


def dress(ax: Axes, title: str, *, percent: bool = False):
    """Gives a panel its title and the common look; `percent` for a share between 0 and 1."""
    ax.set_title(title, loc="left", fontsize=11, color=INK, pad=7)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.spines["bottom"].set_color("#BBBBBB")
    ax.grid(axis="y", color="#E6E6E6", lw=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=9, colors="#555555", length=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    ax.set_prop_cycle(linewidth=[1.8])
    if percent:
        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
        ax.set_ylim(-0.02, 1.02)


def legend(ax: Axes, **place):
    """Adds the legend; `place` is what `Axes.legend` takes."""
    ax.legend(frameon=False, fontsize=9, labelcolor=INK, handlelength=1.5, **place)


def grid(panels: int, title: str) -> tuple[Figure, list[Axes]]:
    """Panels in rows of up to three, each row as wide as the figure; ValueError if there are none."""
    if not panels:
        raise ValueError("nothing to plot: no row holds a metric that the figure shows")
    rows = ROWS[panels]
    height = 2.7 * len(rows) + (0.6 if len(rows) == 1 else 0)
    figure = Figure(figsize=(10, height), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=INK)
    outer = figure.add_gridspec(len(rows), 1)
    axes = []
    for row, count in enumerate(rows):
        cells = outer[row].subgridspec(1, count)
        axes += [figure.add_subplot(cells[i]) for i in range(count)]
    for ax in axes[-rows[-1] :]:
        ax.set_xlabel("training step", fontsize=9, color="#555555")
    return figure, axes


def save(figure: Figure, path):
    """Writes a PNG in one step: a viewer, or a kill, never meets half a picture."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=160)
    write_atomically(pathlib.Path(path), png.getvalue())
