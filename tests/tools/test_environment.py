"""The tools' environment, built for real from a tiny wheel, offline."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

REPOSITORY = pathlib.Path(__file__).parents[2]
TRAIN = 'import sys, tiny\nprint("tiny", tiny.VERSION, *sys.argv[1:])\n'


def make_wheel(folder, name, version, module):
    """A wheel that holds one package; needs no build and no network."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in module.items():
            wheel.writestr(f"{name}/{file}", text)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def require_tiny(root, version):
    wheel = make_wheel(root / "wheels", "tiny", version, {"__init__.py": f'VERSION = "{version}"\n'})
    (root / "requirements.txt").write_text(f"--no-index\n{wheel}\n")


def run(root, *command, cwd="/", **environment):
    return subprocess.run(
        ["bash", *map(str, command)],
        cwd=cwd,
        env=os.environ | environment,
        text=True,
        capture_output=True,
        timeout=120,
    )


def train(root, *arguments, cwd="/", **environment):
    return run(root, root / "tools/train.sh", *arguments, cwd=cwd, **environment)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository whose training prints its arguments and whose test runner prints its own."""
    root = tmp_path_factory.mktemp("a repository")
    shutil.copytree(
        REPOSITORY / "tools", root / "tools", ignore=shutil.ignore_patterns("*.py", "__pycache__")
    )
    (root / "taorl_jax").mkdir()
    (root / "taorl_jax/train.py").write_text(TRAIN)
    require_tiny(root, "1.0")
    pytest_wheel = make_wheel(
        root / "wheels",
        "pytest",
        "99.0",
        {"__main__.py": "import os, sys; print(os.getcwd(), *sys.argv[1:])"},
    )
    (root / "requirements-test.txt").write_text(f"-r requirements.txt\n{pytest_wheel}\n")
    return root


@pytest.fixture(scope="module")
def first_run(repository):
    return train(repository, "experiments/a.py:arm=tir", "--config.train.steps=5", "--workdir", "runs/a b")


def test_the_first_run_installs_and_passes_arguments_on(repository, first_run):
    assert first_run.returncode == 0, first_run.stderr
    arguments = "--config experiments/a.py:arm=tir --config.train.steps=5 --workdir runs/a b"
    assert first_run.stdout == f"tiny 1.0 {arguments}\n"
    assert first_run.stderr.startswith("Installing requirements.txt into .venv (log: ")
    assert (repository / ".venv/install.log").exists()


def test_the_second_run_installs_nothing(repository, first_run):
    second = train(repository, "experiments/a.py")
    assert (second.stdout, second.stderr) == ("tiny 1.0 --config experiments/a.py\n", "")


def test_a_changed_requirement_is_installed(repository, first_run):
    require_tiny(repository, "2.0")
    updated = train(repository, "x.py")
    assert updated.stdout == "tiny 2.0 --config x.py\n"
    assert "Installing requirements.txt" in updated.stderr
    assert train(repository, "x.py").stderr == ""


def test_a_failed_installation_says_where_its_log_is_and_is_done_again(repository, first_run):
    good = (repository / "requirements.txt").read_text()
    (repository / "requirements.txt").write_text("--no-index\nno-such-package==1.0\n")
    for _ in range(2):
        failed = train(repository, "x.py")
        assert failed.returncode == 1
        assert failed.stdout == ""
        assert "no-such-package" in failed.stderr
        assert str(repository / ".venv/install.log") in failed.stderr
    (repository / "requirements.txt").write_text(good)
    assert train(repository, "x.py").returncode == 0


def test_a_venv_left_half_made_is_made_again(repository, first_run):
    (repository / ".venv/bin/python").unlink()
    again = train(repository, "x.py")
    assert again.returncode == 0, again.stderr
    assert again.stdout.endswith("--config x.py\n")


def test_tests_run_in_the_repository_with_the_test_requirements(repository, first_run):
    tests = run(repository, repository / "tools/test.sh", "-k", "resume")
    assert tests.returncode == 0, tests.stderr
    assert tests.stdout == f"{repository} -k resume\n"
    assert train(repository, "x.py").stderr == ""


@pytest.mark.parametrize("arguments", [[], ["--workdir", "runs/a"]])
def test_training_asks_for_a_config(repository, arguments):
    refused = train(repository, *arguments)
    assert refused.returncode == 1
    assert "bash tools/train.sh experiments/quickstart.py" in refused.stderr


@pytest.fixture
def find_python(tmp_path):
    """Runs the look-up with nothing but given stand-ins, name -> shell text, on PATH."""
    bash = shutil.which("bash")
    (tmp_path / "dirname").symlink_to(shutil.which("dirname"))

    def finder(**programs):
        for name, text in programs.items():
            path = tmp_path / name.replace("_", ".")
            path.write_text(f"#!{bash}\n{text}\n")
            path.chmod(0o755)
        script = f'source "{REPOSITORY}/tools/environment.sh"; find_python'
        return subprocess.run(
            [bash, "-c", script], env={"PATH": str(tmp_path)}, text=True, capture_output=True
        )

    return finder


REAL = f'exec "{sys.executable}" "$@"'
WITHOUT_VENV = f'[[ "$2" != *ensurepip* ]] && exec "{sys.executable}" "$@"; exit 1'


def test_finds_the_first_python_that_works(find_python, tmp_path):
    # The stand-in for 3.13 does what a version manager's shim does for a version not installed.
    found = find_python(python3_13="exit 127", python3_12=REAL, python3=REAL)
    assert found.stdout == f"{tmp_path}/python3.12\n"


def test_passes_over_a_python_without_venv_if_another_has_it(find_python, tmp_path):
    found = find_python(python3_12=WITHOUT_VENV, python3=REAL)
    assert found.stdout == f"{tmp_path}/python3\n"


def test_names_the_remedy_for_a_missing_venv_module(find_python):
    found = find_python(python3_11=WITHOUT_VENV)
    assert found.returncode == 1
    assert "apt-get install python3.11-venv" in found.stderr


@pytest.mark.parametrize("programs", [{}, {"python3": "exit 1"}])
def test_says_which_pythons_would_do(find_python, programs):
    found = find_python(**programs)
    assert found.returncode == 1
    assert "Python 3.11, 3.12 or 3.13 is needed" in found.stderr
