import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from taorl_jax.reporting.display import BARS, TrainingDisplay, duration, plain_line, sparkline

ABOUT = {"sandbox": "subprocess http://127.0.0.1:9", "log": "runs/a/train.log", "workdir": "runs/a"}
STEP = {
    "train/reward_mean": 0.25,
    "rollout/valid_code_ratio": 0.8,
    "train/grad_norm": 0.5,
    "filter/dropped_void": 0.04,
    "filter/dropped_all_failed": 0.06,
    "rollout/discarded": 0.4,
    "rollout/overlong_prompts": 3,
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def train(console, **options):
    with TrainingDisplay(4, **ABOUT, console=console, **options) as display:
        display.step(0, {"step": 0, "eval/avg_at_k": 0.4})
        display.phase("rollout", 3, 8)
        display.step(1, {"step": 1} | STEP)
        display.step(2, {"step": 2, "eval/avg_at_k": 0.75, "train/grad_norm": float("nan"), "note": None})
        display.phase("rollout", 5, 8)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("file", "environment"),
    [
        (io.StringIO, {"TERM": "xterm-256color"}),  # a pipe
        (
            io.StringIO,
            {"TERM": "xterm-256color", "FORCE_COLOR": "1"},
        ),  # rich takes it for a terminal
        (Terminal, {"TERM": "dumb"}),  # a terminal without cursor control
    ],
)
def test_without_a_live_terminal_there_is_one_plain_line_a_step(monkeypatch, file, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    text = train(Console(file=file()))
    lines = text.splitlines()
    assert lines[0] == "sandbox: subprocess http://127.0.0.1:9  log: runs/a/train.log  workdir: runs/a"
    assert lines[1] == "step 0/4  held-out 40.0%"
    assert lines[2].startswith("step 1/4  reward +0.250  valid code 80%  gradient norm 0.5  dropped 10%  ")
    assert "  discarded 40%  overlong prompts 3" in lines[2]
    assert lines[3].startswith("step 2/4  held-out 75.0%  ") and lines[3].endswith(" left")
    assert len(lines) == 4
    assert text.isascii() and text.replace("\n", "").isprintable()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    return Console(file=Terminal(), width=100)


def test_the_live_panel_shows_step_phase_metrics_and_paths(terminal):
    last = train(terminal).rpartition("TAO-RL")[2]
    for shown in ("2/4", "5/8", "episodes", "75.0%", "start 40.0%", "+0.25", "valid code 80%"):
        assert shown in last
    assert all(value in last for value in ABOUT.values())
    assert "void 4%   all failed 6%" in last
    assert "40% of the episodes   3 overlong prompts" in last
    assert "gradient norm 0.5" in last  # the last finite one, not the NaN


def test_a_resumed_display_continues_bar_and_curves(terminal):
    rows = [{"step": 0, "eval/avg_at_k": 0.1}, {"step": 3} | STEP]
    with TrainingDisplay(4, **ABOUT, console=terminal, history=rows):
        pass
    shown = terminal.file.getvalue()
    assert "3/4" in shown and "start 10.0%" in shown
    assert "left" not in shown  # no speed is known yet


def test_plain_line_leaves_out_what_was_not_measured():
    assert plain_line(3, 9, {"step": 3}, None) == "step 3/9"


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
@settings(deadline=None)
def test_sparkline_spans_its_range(values):
    line = sparkline(values)
    shown = values[-24:]
    assert len(line) == len(shown)
    if max(shown) > min(shown):
        assert line[shown.index(max(shown))] == BARS[-1] and line[shown.index(min(shown))] == BARS[0]


def test_duration():
    assert [duration(seconds) for seconds in (0.4, 59.6, 754, 3661)] == ["0:00", "1:00", "12:34", "1:01:01"]
