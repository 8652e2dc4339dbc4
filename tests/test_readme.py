"""The README tells the truth: its links exist, its commands parse or run, its config is a config."""

import pathlib
import re
import shlex
import subprocess
import sys

import httpx
import pytest

from taorl_jax.config import ARMS, flatten

ROOT = pathlib.Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True)
    for language, block in BLOCKS
    if language == "bash"
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip()
]
PARSE = """
import sys
from taorl_jax import command
import taorl_jax.{module}
command.run(lambda config, console: print("parsed", config.name, config.arm))
"""


def words(command):
    """Without leading VARIABLE=value words."""
    return command[next(i for i, word in enumerate(command) if not re.match(r"[A-Z_]+=", word)) :]


def test_every_command_is_of_a_kind_that_is_checked_here():
    kinds = {" ".join(words(command)[: 3 if "-m" in command else 2]) for command in COMMANDS}
    assert kinds == {
        "bash tools/train.sh",
        "bash tools/test.sh",  # is what runs this test
        "pip install",  # is what both tools do
        "python -m taorl_jax.train",
        "python -m taorl_jax.evaluate",
        "python -m tools.compare_arms",
        "pip download",
        "python -m tools.policy",
        "python -m tools.prepare_data",  # tests/tools/test_prepare_data.py
        "python -m sandbox_service",
        "python tools/compile_for_tpu.py",  # tests/tools/test_compile_for_tpu.py
    }


@pytest.mark.parametrize(
    "command",
    [c for c in COMMANDS if "tools/train.sh" in c or "taorl_jax.train" in c or "taorl_jax.evaluate" in c],
    ids=" ".join,
)
def test_training_and_evaluation_commands_parse(command, tmp_path):
    arguments = words(command)
    arguments = ["--config", *arguments[2:]] if arguments[0] == "bash" else arguments[3:]
    # Processes that join each other are what tests/distributed/test_two_hosts.py starts.
    joining = ("--coordinator=", "--processes=", "--process=")
    arguments = [word for word in arguments if not word.startswith(joining)]
    if "mine.py" in arguments:
        (example,) = [block for language, block in BLOCKS if language == "python"]
        (tmp_path / "mine.py").write_text(example)
        arguments = [str(tmp_path / word) if word == "mine.py" else word for word in arguments]
    module = "evaluate" if "taorl_jax.evaluate" in command else "train"
    script = PARSE.replace("{module}", module)
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.startswith("parsed"), done.stderr


def test_benchmarks_and_presets_shown_exist():
    from taorl_jax.config import PRESETS, base_config

    (command,) = [c for c in COMMANDS if "--benchmarks" in c]
    assert set(command[command.index("--benchmarks") + 1].split(",")) <= set(base_config().benchmarks)
    assert command[command.index("--preset") + 1] in PRESETS


def test_the_sandbox_command_serves():
    (command,) = [c for c in COMMANDS if "sandbox_service" in c]
    arguments = ["0" if word == "8080" else word for word in command[1:]]
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            url = re.search(r"http://[\d.:]+", process.stdout.readline())[0]
            assert httpx.get(f"{url}/health").status_code == 200
        finally:
            process.terminate()


def test_compare_arms_takes_the_flags_shown():
    (command,) = [c for c in COMMANDS if "tools.compare_arms" in c]
    done = subprocess.run(
        [sys.executable, *command[1:], "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert all(word in done.stdout for word in command if word.startswith("--"))
    assert all(run.split(":")[0] in ARMS for run in command[command.index("--runs") + 1 :])


def test_policy_takes_the_commands_shown():
    from tools.policy import parser

    shown = [parser().parse_args(c[3:]) for c in COMMANDS if "tools.policy" in c]
    assert [options.command for options in shown] == ["convert", "show", "export"]
    (download,) = [c for c in COMMANDS if "download" in c]
    package, folder = download[3].replace("-", "_").split("=="), download[5]
    assert str(shown[0].path) == f"{folder}/{package[0]}-{package[1]}-py3-none-any.whl"


def test_the_example_config_is_one():
    (block,) = [block for language, block in BLOCKS if language == "python"]
    scope = {}
    exec(block, scope)
    assert scope["get_config"]("arm=tir").filter.criterion1 is False
    assert scope["get_config"]().data.train == "data/train.jsonl"


def test_links_and_named_files_exist():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if not link.startswith("http")]
    files = re.findall(r"`((?:requirements|experiments|tools|taorl_jax)[\w./-]*\.(?:py|sh|txt))`", TEXT)
    assert links
    assert [name for name in links + files if not (ROOT / name).exists()] == []


def test_settings_named_in_the_text_exist():
    from taorl_jax.config import base_config

    sections = "|".join(name for name in base_config() if hasattr(base_config()[name], "items"))
    named = set(re.findall(rf"`((?:{sections})\.(?!log`)\w+)`", TEXT))
    assert named
    assert named <= set(flatten(base_config()))


def test_every_arm_is_in_the_table():
    for arm in ARMS:
        assert f"`{arm}`" in TEXT
