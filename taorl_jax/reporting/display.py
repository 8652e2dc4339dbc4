"""What the console shows while a run trains: one live panel, or, without a terminal, one line a step."""

import math
import time

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"


class TrainingDisplay:
    """Context manager that shows where the run stands.

    On a terminal a panel is redrawn at most 4 times a second by a thread of its own, so that the calls
    below only store a value. On a pipe, in CI or on a terminal without cursor control there is one plain
    line a step.

    Args:
      total_steps: the step at which training ends.
      sandbox: tier and address of the sandbox, for people.
      log, workdir: paths, shown whole so that they can be copied.
      history: rows of `metrics.jsonl` from before a resume; bar and curves continue from them.
      console: where to; standard output by default.
    """

    def __init__(self, total_steps: int, *, sandbox: str, log, workdir, history=(), console=None):
        self._console = console or Console()
        self._total = total_steps
        self._about = {"sandbox": sandbox, "log": str(log), "workdir": str(workdir)}
        self._step = 0
        self._phase = ("start", 0, 0)
        self._latest: dict[str, float] = {}
        self._rewards: list[float] = []
        self._heldout: list[float] = []
        for row in history:
            self._take(row["step"], row)
        self._first_step = self._step
        self._started = time.monotonic()
        # FORCE_COLOR makes rich call a file a terminal; colours can be forced, cursor movement cannot.
        interactive = self._console.is_terminal and self._console.file.isatty()
        self._live = None
        if interactive and not self._console.is_dumb_terminal:
            self._live = Live(get_renderable=self._panel, console=self._console, refresh_per_second=4)

    def __enter__(self):
        self._started = time.monotonic()
        if self._live:
            self._live.start(refresh=True)
        else:
            self._line("  ".join(f"{name}: {value}" for name, value in self._about.items()))
        return self

    def __exit__(self, *exception):
        if self._live:
            self._live.stop()

    def phase(self, name: str, done: int = 0, total: int = 0):
        """Says what goes on: rollout, update, evaluate or save, and how many episodes of it are done."""
        self._phase = (name, done, total)

    def step(self, step: int, metrics: dict):
        """Takes in the metrics of a finished step (or of the evaluation after it)."""
        self._take(step, metrics)
        if not self._live:
            self._line(plain_line(step, self._total, metrics, self._seconds_left()))

    def _take(self, step, metrics):
        self._step = step
        self._latest = self._latest | finite(metrics)
        for values, name in ((self._rewards, "train/reward_mean"), (self._heldout, "eval/avg_at_k")):
            if name in finite(metrics):
                values.append(metrics[name])

    def _line(self, text: str):
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _seconds_left(self) -> float | None:
        done = self._step - self._first_step
        if done <= 0:
            return None
        return (time.monotonic() - self._started) / done * (self._total - self._step)

    def _panel(self) -> Panel:
        """The live panel; drawn from the refreshing thread."""
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column(overflow="fold")
        rows.add_row("step", self._bar(self._step, self._total, self._clock()))
        name, done, total = self._phase
        rows.add_row(name, self._bar(done, total, "episodes") if total else "...")
        for label, text in self._metric_lines():
            rows.add_row(label, text)
        for label, value in self._about.items():
            rows.add_row(label, Text(value, style="dim"))
        return Panel(rows, title="TAO-RL", title_align="left", border_style="blue", padding=(0, 1))

    def _bar(self, done: int, total: int, after: str) -> Table:
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(max(total, 1), done, width=24), Text(f"{done}/{total}"), Text(after, "dim"))
        return bar

    def _clock(self) -> str:
        left = self._seconds_left()
        elapsed = f"{duration(time.monotonic() - self._started)} elapsed"
        return elapsed if left is None else f"{elapsed}, about {duration(left)} left"

    def _metric_lines(self) -> list[tuple[str, Text]]:
        latest, lines = self._latest, []
        if self._heldout:
            best = f"  best {max(self._heldout):.1%}, start {self._heldout[0]:.1%}"
            value = Text(f"{self._heldout[-1]:6.1%}  ", "bold green")
            lines.append(("held-out", value + self._spark(self._heldout, "green") + Text(best, "dim")))
        if self._rewards:
            value = Text(f"{self._rewards[-1]:+6.2f}  ", "bold")
            lines.append(("reward", value + self._spark(self._rewards, "cyan")))
        small = [
            (latest.get("rollout/valid_code_ratio"), "valid code {:.0%}"),
            (latest.get("train/grad_norm"), "gradient norm {:.2g}"),
        ]
        if any(value is not None for value, _ in small):
            known = [form.format(value) for value, form in small if value is not None]
            lines.append(("health", Text("   ".join(known))))
        if dropped(latest):
            shares = "   ".join(f"{reason} {share:.0%}" for reason, share in dropped(latest).items())
            lines.append(("dropped", Text(shares)))
        waste = [
            (latest.get("rollout/discarded"), "{:.0%} of the episodes"),
            (latest.get("rollout/overlong_prompts"), "{} overlong prompts"),
        ]
        if any(value for value, _ in waste):
            lines.append(("discarded", Text("   ".join(form.format(v) for v, form in waste if v))))
        return lines

    def _spark(self, values, style: str) -> Text:
        return Text("" if self._console.options.ascii_only else sparkline(values), style)


def plain_line(step: int, total: int, metrics: dict, seconds_left: float | None) -> str:
    """One step in one ASCII line; metrics that were not measured are left out."""
    known = finite(metrics)
    parts = [f"step {step}/{total}"]
    for name, form in (
        ("train/reward_mean", "reward {:+.3f}"),
        ("eval/avg_at_k", "held-out {:.1%}"),
        ("rollout/valid_code_ratio", "valid code {:.0%}"),
        ("train/grad_norm", "gradient norm {:.3g}"),
    ):
        if name in known:
            parts.append(form.format(known[name]))
    if dropped(known):
        parts.append(f"dropped {sum(dropped(known).values()):.0%}")
    if "rollout/discarded" in known:
        parts.append(f"discarded {known['rollout/discarded']:.0%}")
    if known.get("rollout/overlong_prompts"):
        parts.append(f"overlong prompts {known['rollout/overlong_prompts']}")
    if seconds_left is not None:
        parts.append(f"{duration(seconds_left)} left")
    return "  ".join(parts)


def finite(metrics: dict) -> dict[str, float]:
    """The metrics that are finite numbers."""
    return {
        name: value
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def dropped(metrics: dict) -> dict[str, float]:
    """Reason -> share of the trajectories that the filters dropped for it."""
    prefix = "filter/dropped_"
    return {
        name.removeprefix(prefix).replace("_", " "): share
        for name, share in metrics.items()
        if name.startswith(prefix)
    }


def sparkline(values, width: int = 24) -> str:
    """The last `width` finite values as bars between their least and their greatest."""
    shown = list(values)[-width:]
    low, span = min(shown), max(shown) - min(shown)
    return "".join(BARS[round((value - low) / span * 7) if span else 3] for value in shown)


def duration(seconds: float) -> str:
    """`m:ss`, or `h:mm:ss` from an hour on."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
