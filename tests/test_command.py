"""The command line: what a user mistypes is answered in one line that names the way out."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SHOW = """
import sys
from absl import flags
from taorl_jax import command
flags.DEFINE_string("workdir", None, "")
command.run(lambda config, console: print(config.arm, config.train.steps, config.sandbox.urls))
"""


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-c", SHOW, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


QUICKSTART = ("--config", "experiments/quickstart.py")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a config: --config experiments/quickstart.py"),
        (("--config", "experiments/nope.py"), "experiments/nope.py: no such file"),
        ((*QUICKSTART, "--config.train.stps=5"), "did you mean --config.train.steps?"),
        ((*QUICKSTART, "--config.trian.steps=5"), "did you mean --config.train.steps?"),
        ((*QUICKSTART, "--config.train.steps=abc"), "--config.train.steps=abc"),
        ((*QUICKSTART, "--wrokdir=x"), "workdir"),
        ((*QUICKSTART, "stray"), "stray: unexpected"),
        (("--config", "experiments/quickstart.py:arm=foo"), "one of taorl, tir, simpletir"),
    ],
    ids=str,
)
def test_mistakes_are_answered_in_one_line(arguments, message):
    done = command(*arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_arms_and_overrides_reach_the_config():
    done = command("--config=experiments/quickstart.py:arm=tir", "--config.train.steps=7")
    assert done.stdout.split()[:2] == ["tir", "7"], done.stderr
    urls = command(*QUICKSTART, "--config.sandbox.urls=('http://a:1','http://b:2')")
    assert "('http://a:1', 'http://b:2')" in urls.stdout, urls.stderr
