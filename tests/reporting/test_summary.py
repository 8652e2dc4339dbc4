import io

import pytest
from rich.console import Console

from taorl_jax.reporting.summary import final_summary, passages, sample_table, time_spent
from taorl_jax.rewards.verdict import Outcome, Verdict
from taorl_jax.rollout.trajectory import Author, Trajectory

ROWS = [
    {"step": 0, "eval/avg_at_k": 0.4, "timing/evaluate_seconds": 10.0},
    {"step": 1, "train/reward_mean": -0.5, "train/grad_norm": 2.0, "timing/rollout_seconds": 60.0},
    {"step": 2, "train/reward_mean": 0.5, "eval/avg_at_k": 0.9, "timing/rollout_seconds": 10.0},
    {"step": 3, "train/reward_mean": 0.25, "eval/avg_at_k": 0.8, "timing/update_seconds": 20.0},
]


def shown(renderable):
    console = Console(file=io.StringIO(), width=100)
    console.print(renderable)
    return console.file.getvalue()


def line_of(text, start):
    return next(" ".join(line.split()) for line in text.splitlines() if line.strip().startswith(start))


def test_summary_gives_start_best_and_final():
    text = shown(final_summary(ROWS, curves="runs/a/curves.png", checkpoint="runs/a/checkpoints/3"))
    assert line_of(text, "held-out") == "held-out success, Avg@K 40.0% 90.0% (step 2) 80.0%"
    assert line_of(text, "training reward") == "training reward -0.500 +0.500 (step 2) +0.250"
    assert line_of(text, "gradient norm") == "gradient norm 2 2"  # no best: it is neither good nor bad
    assert "curves: runs/a/curves.png" in text and "checkpoint: runs/a/checkpoints/3" in text


def test_time_is_summed_by_phase():
    assert time_spent(ROWS) == "time: rollout 1:10 (70%)  update 0:20 (20%)  evaluate 0:10 (10%)"
    assert time_spent([]) == "time: not measured"


def trajectory(policy: bytes, tool: bytes, outcome):
    record = Trajectory(0, 0, list(b"17*23?"))
    record.append_policy(list(policy), [0.0] * len(policy), [0.0] * len(policy))
    record.append_observation(list(tool))
    record.append_policy(list(b"so!"), [0.0] * 3, [0.0] * 3)
    record.verdict = outcome and Verdict(outcome, "391", "equal")
    return record


def decode(ids):
    return bytes(ids).decode()


def test_passages_follow_the_record():
    pieces = passages(trajectory(b"print", b"391", None))
    assert [(author, decode(ids.tolist())) for author, ids in pieces] == [
        (Author.PROMPT, "17*23?"),
        (Author.POLICY, "print"),
        (Author.TOOL, "391"),
        (Author.POLICY, "so!"),
    ]


def test_samples_are_the_first_right_and_the_first_wrong():
    text = shown(
        sample_table(
            [
                trajectory(b"unjudged", b"", None),
                trajectory(b"unknown", b"", Outcome.UNKNOWN),
                trajectory(b"bad[/bold]", b"0", Outcome.WRONG),
                trajectory(b"good", b"391", Outcome.RIGHT),
                trajectory(b"better", b"391", Outcome.RIGHT),
            ],
            decode,
        )
    )
    assert text.index("right: answer 391") < text.index("good") < text.index("wrong: answer 391")
    assert "bad[/bold]" in text  # not taken for markup
    assert not {"unjudged", "unknown", "better"} & set(text.split())
    for author in ("prompt", "policy", "tool"):
        assert text.count(f" {author} ") >= 2


@pytest.mark.parametrize("control", [b"\x1b[2J", b"\x07", b"\r", b"\xc2\x9b2J"])
def test_tool_output_cannot_steer_the_terminal(control):
    text = shown(sample_table([trajectory(b"x", b"a" + control, Outcome.WRONG)], decode))
    assert "a\N{REPLACEMENT CHARACTER}" in text
    assert not set(text) & {"\x1b", "\x07", "\r", "\x9b"}


def test_long_passages_lose_their_middle():
    text = shown(sample_table([trajectory(b"x" * 50 + b"y" * 50, b"0", Outcome.RIGHT)], decode, max_chars=20))
    assert "xxxxxxxxxx [... 80 characters ...] yyyyyyyyyy" in text
