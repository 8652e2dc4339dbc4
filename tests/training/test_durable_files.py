"""A file is replaced whole or not at all."""

import os
import pathlib
import subprocess
import sys
import textwrap

from taorl_jax.training.durable_files import write_atomically

REPOSITORY = pathlib.Path(__file__).parents[2]


def test_writes_and_replaces(tmp_path):
    for data in (b"first, longer", b"second"):
        write_atomically(tmp_path / "file", data)
        assert (tmp_path / "file").read_bytes() == data
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_leaves_the_old_file(tmp_path):
    # A limit on the size of files refuses the write inside the kernel, as a full disk does.
    program = """
        import pathlib, resource, signal, sys
        from taorl_jax.training.durable_files import write_atomically
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        path = pathlib.Path(sys.argv[1])
        write_atomically(path, b"old")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            write_atomically(path, b"x" * 10_000)
        except OSError as error:
            print(type(error).__name__)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "file")],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "OSError\n", done.stderr
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
