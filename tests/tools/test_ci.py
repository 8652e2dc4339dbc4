"""What continuous integration calls success."""

import pathlib
import shutil
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).parents[2]
PASSING = "def test_it(): pass\n"
SKIPPED = "import pytest\ndef test_it(): pytest.skip()\n"
FAILING = "def test_it(): assert False\n"


@pytest.mark.parametrize(
    ("tests", "succeeds"),
    [
        (PASSING, True),
        (PASSING + SKIPPED.replace("test_it", "test_other"), True),
        (SKIPPED, False),
        (FAILING, False),
        ("", False),
    ],
)
def test_succeeds_only_if_a_test_ran_and_none_failed(tmp_path, monkeypatch, tests, succeeds):
    (tmp_path / ".ci").mkdir()
    (tmp_path / "tools").mkdir()
    shutil.copy(REPOSITORY / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "tools/environment.sh").write_text(
        f'root="{tmp_path}"\nvenv="{sys.prefix}"\nensure_environment() {{ :; }}\n'
    )
    shutil.copy(REPOSITORY / "tools/test.sh", tmp_path / "tools/test.sh")
    (tmp_path / "test_one.py").write_text(tests)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # starts in a fraction of the time
    done = subprocess.run(["bash", ".ci/run"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) is succeeds, done.stdout + done.stderr
