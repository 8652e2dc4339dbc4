"""Fresh, continued and refused run directories."""

import json
import logging
import os
import pathlib
import subprocess
import sys
import warnings

import absl.logging
import pytest
from ml_collections import ConfigDict

from taorl_jax.training.run_directory import WorkdirRefused, config_differences, open_run

REPOSITORY = pathlib.Path(__file__).parents[2]


def make_config(**changes):
    config = ConfigDict(
        {
            "seed": 0,
            "train": {"steps": 10, "learning_rate": 1e-3},
            "sandbox": {"urls": ("http://a:1",), "wall_s": 3.0},
            "log": {"trajectories": 4},
        }
    )
    config.update_from_flattened_dict(changes)
    return config.lock()


def test_without_a_workdir_every_run_gets_a_fresh_folder(tmp_path):
    paths = []
    for _ in range(3):
        with open_run(None, make_config(), "quickstart", runs=tmp_path) as run:
            assert not run.continued
            paths.append(run.path)
    assert len(set(paths)) == 3
    assert all(path.parent == tmp_path and path.name.startswith("quickstart-2") for path in paths)


def test_the_resolved_config_is_saved(tmp_path):
    with open_run(str(tmp_path / "a/b"), make_config(), "x") as run:
        saved = json.loads(run.config.read_text())
    assert saved["train"] == {"learning_rate": 1e-3, "steps": 10}
    assert saved["sandbox"]["urls"] == ["http://a:1"]


def test_the_same_config_continues(tmp_path):
    for continued in (False, True):
        with open_run(str(tmp_path), make_config(), "x") as run:
            assert run.continued is continued
            run.metrics.write_text("kept")
    assert run.metrics.read_text() == "kept"


@pytest.mark.parametrize(
    "change", [{"train.steps": 20}, {"sandbox.urls": ("http://b:2",)}, {"log.trajectories": 8}]
)
def test_settings_that_may_change_continue_and_are_saved(tmp_path, change):
    with open_run(str(tmp_path), make_config(), "x"):
        pass
    with open_run(str(tmp_path), make_config(**change), "x") as run:
        assert run.continued
        assert not config_differences(ConfigDict(json.loads(run.config.read_text())), make_config(**change))
        assert run.config.read_text() == make_config(**change).to_json(indent=2, sort_keys=True) + "\n"


def test_another_config_is_refused_with_both_values(tmp_path):
    with open_run(str(tmp_path), make_config(), "x") as run:
        before = run.config.read_text()
    changes = {"train.learning_rate": 3e-4, "sandbox.wall_s": 5.0, "train.steps": 20}
    with pytest.raises(WorkdirRefused) as refusal, open_run(str(tmp_path), make_config(**changes), "x"):
        pass
    message = str(refusal.value)
    assert "train.learning_rate: 0.001 there, 0.0003 now" in message
    assert "sandbox.wall_s: 3.0 there, 5.0 now" in message
    assert "train.steps:" not in message
    assert "another --workdir" in message
    assert run.config.read_text() == before


def test_missing_and_new_settings_are_differences():
    saved = ConfigDict({"a": 1, "train": {"old": 2}})
    current = ConfigDict({"a": 1, "train": {"new": 3}})
    assert config_differences(saved, current) == {"train.old": (2, "absent"), "train.new": ("absent", 3)}


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(WorkdirRefused, match=r"thesis\.tex"), open_run(str(tmp_path), make_config(), "x"):
        pass


def test_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(WorkdirRefused, match="is a file"),
        open_run(str(tmp_path / "file"), make_config(), "x"),
    ):
        pass


def test_a_folder_left_before_its_config_was_written_is_used(tmp_path):
    (tmp_path / "lock").write_text("1")
    (tmp_path / "config.json.unfinished").write_text("{")
    with open_run(str(tmp_path), make_config(), "x") as run:
        assert not run.continued


HOLD = """
import sys
from ml_collections import ConfigDict
from taorl_jax.training.run_directory import open_run
with open_run(sys.argv[1], ConfigDict(eval(sys.argv[2])), "x"):
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder."""
    command = [sys.executable, "-c", HOLD, str(tmp_path), repr(make_config().to_dict())]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def test_two_processes_do_not_write_in_one_folder(tmp_path, holder):
    with pytest.raises(WorkdirRefused, match=str(holder.pid)), open_run(str(tmp_path), make_config(), "x"):
        pass


def test_death_releases_the_folder(tmp_path, holder):
    holder.kill()
    holder.wait()
    with open_run(str(tmp_path), make_config(), "x") as run:
        assert run.continued


def test_the_log_goes_to_the_file_and_not_to_the_console(tmp_path, capfd):
    with open_run(str(tmp_path), make_config(), "x") as run:
        logging.getLogger("taorl").info("of ours")
        absl.logging.warning("of a library")
        warnings.warn("of Python", stacklevel=1)
    text = run.log.read_text()
    for message in ("of ours", "of a library", "of Python"):
        assert message in text
    assert capfd.readouterr() == ("", "")


def test_logging_is_put_back(tmp_path):
    root = logging.getLogger()
    before = list(root.handlers), root.level
    with open_run(str(tmp_path), make_config(), "x"):
        assert root.handlers != before[0]
    assert (root.handlers, root.level) == before
