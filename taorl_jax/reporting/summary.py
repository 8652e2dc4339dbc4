"""What the console shows at the end: how far a run came, where its time went, and what it writes like."""

from collections.abc import Callable, Iterable

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from taorl_jax.reporting.display import duration, finite
from taorl_jax.rewards.verdict import Outcome
from taorl_jax.rollout.trajectory import Author, Trajectory

PHASES = ("rollout", "update", "evaluate", "save")
# metric, label, format, whether more is better (None: neither way)
MAIN_METRICS = (
    ("eval/avg_at_k", "held-out success, Avg@K", "{:.1%}", True),
    ("eval/pass_at_k", "held-out success, Pass@K", "{:.1%}", True),
    ("train/reward_mean", "training reward", "{:+.3f}", True),
    ("rollout/valid_code_ratio", "valid calls per turn", "{:.1%}", True),
    ("rollout/entropy", "entropy (nats)", "{:.3f}", None),
    ("train/grad_norm", "gradient norm", "{:.3g}", None),
    ("rollout/response_tokens", "response length (tokens)", "{:.0f}", None),
)
AUTHOR_STYLES = {Author.PROMPT: "dim", Author.POLICY: "", Author.TOOL: "yellow"}
# Tool output is untrusted: no escape sequence of it may reach the terminal.
CONTROL = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], "\N{REPLACEMENT CHARACTER}")


def final_summary(rows: list[dict], *, curves, checkpoint) -> Group:
    """Start, best and final of the main metrics, seconds a phase, and where the results are.

    Args:
      rows: all rows of `metrics.jsonl`; phases are timed by `timing/<phase>_seconds`.
      curves: path of the picture.
      checkpoint: path of the last checkpoint.
    """
    table = Table(title="This run", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for heading in ("", "start", "best", "final"):
        table.add_column(heading, justify="right" if heading else "left")
    known = [finite(row) for row in rows]
    for name, label, form, more_is_better in MAIN_METRICS:
        points = [(row["step"], row[name]) for row in known if name in row]
        if points:
            step, best = max(points, key=lambda point: point[1])
            at_best = f"{form.format(best)} (step {step})" if more_is_better else ""
            table.add_row(label, form.format(points[0][1]), at_best, form.format(points[-1][1]))
    paths = Text(f"curves: {curves}\ncheckpoint: {checkpoint}", overflow="fold")
    return Group(table, Text(time_spent(rows)), paths)


def time_spent(rows: list[dict]) -> str:
    """`rollout 1:10 (61%)  update 0:40 (35%) ...` over the phases that were timed."""
    seconds = {phase: sum(finite(row).get(f"timing/{phase}_seconds", 0) for row in rows) for phase in PHASES}
    whole = sum(seconds.values())
    parts = [f"{phase} {duration(s)} ({s / whole:.0%})" for phase, s in seconds.items() if s]
    return "time: " + ("  ".join(parts) or "not measured")


def sample_table(
    trajectories: Iterable[Trajectory], decode: Callable[[list[int]], str], *, max_chars: int = 1500
) -> Group:
    """The first rollout judged right and the first judged wrong, with who wrote what.

    Args:
      trajectories: finished trajectories.
      decode: token ids -> text.
      max_chars: longer passages lose their middle.
    """
    judged = [trajectory for trajectory in trajectories if trajectory.verdict]
    tables = []
    for outcome, colour in ((Outcome.RIGHT, "green"), (Outcome.WRONG, "red")):
        chosen = next((t for t in judged if t.verdict.outcome is outcome), None)
        if chosen:
            tables.append(_rollout_table(chosen, decode, colour, max_chars))
    return Group(*tables)


def passages(trajectory: Trajectory) -> list[tuple[Author, np.ndarray]]:
    """Runs of neighbouring tokens of one author: [(author, token ids [n] int32)]."""
    authors = trajectory.authors
    starts = np.flatnonzero(np.diff(authors, prepend=-1))
    pieces = np.split(trajectory.tokens, starts[1:])
    return [(Author(authors[start]), piece) for start, piece in zip(starts, pieces, strict=True)]


def _rollout_table(trajectory: Trajectory, decode, colour: str, max_chars: int) -> Table:
    verdict = trajectory.verdict
    title = f"{verdict.outcome.value}: answer {verdict.answer}, {verdict.reason}".translate(CONTROL)
    table = Table(
        title=Text(title, f"bold {colour}"),
        title_justify="left",
        show_header=False,
        expand=True,
        box=box.ROUNDED,
    )
    table.add_column(no_wrap=True, width=6)
    table.add_column(overflow="fold", ratio=1)
    for author, ids in passages(trajectory):
        text = decode(ids.tolist()).translate(CONTROL).strip("\n")
        style = AUTHOR_STYLES[author]
        table.add_row(Text(author.name.lower(), style), Text(_shortened(text, max_chars), style))
        table.add_section()
    return table


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"
