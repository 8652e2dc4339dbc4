"""A snippet gives the same here as by `python -I main.py`, and nothing of one run is seen by the next."""

import os
import re
import subprocess
import sys

import pytest
import sandbox_corpus as corpus

STDIN = "first\nsecond\u00e9\n\nlast"
# Of no interest: the folder, the numbers of processes and threads, the addresses of objects.
VARYING = ((r"/\S*/main\.py", "main.py"), (r"0x[0-9a-f]{6,}", "0x"), (r"/\S*python3?(\.\d+)?(?= )", "python"))


def same(text: str) -> str:
    for pattern, replacement in VARYING:
        text = re.sub(pattern, replacement, text)
    return text


def by_plain_interpreter(code: str, folder) -> tuple:
    (folder / "main.py").write_text(code, encoding="utf-8")
    environment = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": str(folder),
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-I", str(folder / "main.py")],
        input=STDIN.encode(),
        capture_output=True,
        cwd=folder,
        env=environment,
        timeout=120,
    )
    output = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
    return (*map(same, output), done.returncode)


@pytest.mark.parametrize("name", corpus.SNIPPETS)
def test_the_same_as_a_plain_interpreter(service, tmp_path, name):
    code = corpus.SNIPPETS[name]
    answer = service.run(code, stdin=STDIN, limits={"wall_s": 60, "cpu_s": 60})
    status = answer["exit_code"] if answer["signal"] is None else -answer["signal"]
    wanted = by_plain_interpreter(code, tmp_path)
    assert (same(answer["stdout"]), same(answer["stderr"]), status) == wanted


@pytest.mark.parametrize(
    "name", ["print", "nested_error", "syntax", "exit_text", "stdin_loop", "surrogate", "sympy"]
)
def test_the_same_in_a_new_interpreter_in_the_jail(service, name):
    code = corpus.SNIPPETS[name]
    fields = ("stdout", "stderr", "exit_code", "signal", "outcome")
    warm, fresh = (
        service.run(code, stdin=STDIN, limits={"wall_s": 60, "cpu_s": 60}, mode=mode)
        for mode in ("warm", "fresh")
    )
    assert {field: warm[field] for field in fields} == {field: fresh[field] for field in fields}


LEAKS = {
    "modules": ("import sys; sys.modules['left'] = sys", "import sys; print('left' in sys.modules)"),
    "builtins": ("import builtins; builtins.left = 1", "print('left' in dir(__builtins__))"),
    "patched_module": ("import math; math.sqrt = lambda x: 0", "import math; print(math.sqrt(4) != 2)"),
    "patched_numpy": ("import numpy; numpy.pi = 3", "import numpy; print(numpy.pi == 3)"),
    "files": ("open('left', 'w'); open('/tmp/left2', 'w')", "import os; print(len(os.listdir('.')) > 1)"),
    "environment": ("import os; os.environ['LEFT'] = '1'", "import os; print('LEFT' in os.environ)"),
    "globals": ("left = 1", "print('left' in globals())"),
    "signals": (
        "import signal; signal.signal(10, signal.SIG_IGN)",
        "import signal; print(signal.getsignal(10) != 0)",
    ),
    "recursion": (
        "import sys; sys.setrecursionlimit(99)",
        "import sys; print(sys.getrecursionlimit() < 999)",
    ),
    "path": ("import sys; sys.path.append('/left')", "import sys; print('/left' in sys.path)"),
    "digits": (
        "import sys; sys.set_int_max_str_digits(0)",
        "import sys; print(sys.get_int_max_str_digits() == 0)",
    ),
}


@pytest.mark.parametrize("name", LEAKS)
def test_nothing_is_left_for_the_next_run(service, name):
    leave, look = LEAKS[name]
    for _ in range(2):  # on both lanes
        service.run(leave)
    assert [service.run(look)["stdout"] for _ in range(2)] == ["False\n"] * 2
