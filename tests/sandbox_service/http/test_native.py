"""The native API over HTTP: every outcome, every field, every refusal."""

import base64
import signal

import pytest

from sandbox_service.outcome import OUTCOMES

CASES = {
    "ok": {"code": "print(6 * 7)"},
    "nonzero_exit": {"code": "import sys; sys.exit(1)"},
    "exception": {"code": "print(1)\n1/0"},
    "timeout": {"code": "print('early', flush=True)\nimport time; time.sleep(60)", "limits": {"wall_s": 0.5}},
    "cpu_limit": {"code": "while True: pass", "limits": {"wall_s": 30, "cpu_s": 1}},
    "memory_limit": {"code": "bytearray(10 << 30)"},
    "output_limit": {"code": "while True: print('x' * 1000)"},
    "signal": {"code": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"},
    "rejected": {"code": "#" * 300_000},
}


def test_every_outcome_has_a_case():
    """The last needs a fault of ours: see the tests of the service's life."""
    assert set(CASES) | {"infra_error"} == set(OUTCOMES)


@pytest.mark.parametrize("outcome", CASES)
def test_outcome(service, outcome):
    answer = service.run(**CASES[outcome])
    assert answer["outcome"] == outcome
    assert answer["retryable"] == (outcome == "infra_error")
    assert service.run("print('next')")["stdout"] == "next\n"


def test_fields_of_a_good_run(service):
    answer = service.run("import sys\nprint('out')\nprint('err', file=sys.stderr)", id="mine")
    assert {name: answer[name] for name in ("id", "exit_code", "signal", "stdout", "stderr", "files")} == {
        "id": "mine",
        "exit_code": 0,
        "signal": None,
        "stdout": "out\n",
        "stderr": "err\n",
        "files": {},
    }
    assert answer["truncated"] == {"stdout": False, "stderr": False}
    assert answer["isolation"] == service.health()["isolation"]
    assert answer["wall_ms"] > 0 and answer["cpu_ms"] > 0 and answer["max_rss_kb"] > 1000
    assert answer["queue_ms"] >= 0


def test_exit_codes_and_signals(service):
    assert service.run("raise SystemExit(7)")["exit_code"] == 7
    killed = service.run("import os; os.abort()")
    assert (killed["exit_code"], killed["signal"]) == (None, signal.SIGABRT)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("def f(:", "exception"),
        ("import sys; sys.exit('Traceback of a train')", "nonzero_exit"),
        ("raise MemoryError('mine')", "memory_limit"),
        ("import sys\nsys.stderr.write('warning')", "ok"),
        ("class OddError(Exception): pass\nraise OddError", "exception"),
    ],
)
def test_exit_one_is_told_apart(service, code, outcome):
    assert service.run(code)["outcome"] == outcome


def test_running_out_of_memory_ends_stderr_with_the_error(service):
    code = "x = []\nwhile True: x.append(bytearray(10 << 20))"
    answer = service.run(code, limits={"memory_mb": 256})
    assert answer["outcome"] == "memory_limit"
    assert answer["stderr"].splitlines()[-1] == "MemoryError"


def test_a_time_out_keeps_the_output_so_far(service):
    answer = service.run(**CASES["timeout"])
    assert (answer["stdout"], answer["signal"]) == ("early\n", signal.SIGKILL)


def test_ignoring_the_cpu_signal_does_not_help(service):
    code = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    assert service.run(code, limits={"wall_s": 30, "cpu_s": 1})["outcome"] == "cpu_limit"


def test_stdin(service):
    assert service.run("print(input()[::-1])", stdin="h\u00e9llo\n")["stdout"] == "oll\u00e9h\n"
    assert service.run("input()")["stderr"].endswith("EOFError: EOF when reading a line\n")
    size = service.run("import sys; print(len(sys.stdin.read()))", stdin="x" * 1_000_000)
    assert size["stdout"] == "1000000\n"
    assert service.run("pass", stdin="x" * 1_100_000)["outcome"] == "rejected"


def test_files_are_fetched(service):
    code = """
import os
open("a.bin", "wb").write(b"\\x00\\xff")
open("empty", "w")
os.symlink("/etc/hostname", "link")
os.mkdir("dir")
os.mkfifo("fifo")
open("long", "w").write("y" * (2 << 20))
"""
    files = service.run(code, fetch_files=["a.bin", "empty", "absent", "link", "dir", "fifo", "long"])[
        "files"
    ]
    assert set(files) == {"a.bin", "empty", "long"}
    assert base64.b64decode(files["a.bin"]) == b"\x00\xff"
    assert files["empty"] == ""
    assert base64.b64decode(files["long"]) == b"y" * (1 << 20)


def test_the_same_code_prints_the_same(service):
    """Hash order and paths in tracebacks are the same in each run, so that episodes can be repeated."""
    code = """
import traceback
print({"a", "b", "c", "d", "e", "f"})
try:
    1 / 0
except ZeroDivisionError:
    print(traceback.format_exc())
"""
    first, second = service.run(code), service.run(code)
    assert first["outcome"] == "ok"
    assert first["stdout"] == second["stdout"]


def test_the_environment_of_the_service_is_out_of_reach(service):
    code = """
import os
print(sorted(os.environ))
for pid in os.listdir("/proc"):
    try:
        print(open(f"/proc/{pid}/environ").read())
    except OSError:
        pass
"""
    for mode in ("warm", "fresh"):
        answer = service.run(code, mode=mode)
        assert answer["outcome"] == "ok"
        assert "hunter2" not in answer["stdout"] and "SECRET_TOKEN" not in answer["stdout"]
        assert "PYTHONHASHSEED" in answer["stdout"]


def test_nothing_passes_from_run_to_run(service):
    service.run("open('left.txt', 'w').write('x'); import builtins; builtins.left = 1")
    answer = service.run("import os, builtins; print(os.listdir('.'), hasattr(builtins, 'left'))")
    assert answer["stdout"] == "['main.py'] False\n"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "code"),
        ({"code": 3}, "code"),
        ({"code": "", "limts": {}}, "limts"),
        ({"code": "", "stdin": None}, "stdin"),
        ({"code": "", "limits": {"wall_s": 61}}, "limits.wall_s"),
        ({"code": "", "limits": {"wall_s": 0}}, "limits.wall_s"),
        ({"code": "", "limits": {"cpu_s": -1}}, "limits.cpu_s"),
        ({"code": "", "limits": {"memory_mb": 10**9}}, "limits.memory_mb"),
        ({"code": "", "limits": {"output_bytes": 65537}}, "limits.output_bytes"),
        ({"code": "", "limits": {"wall_s": "NaN"}}, "limits.wall_s"),
        ({"code": "", "fetch_files": ["../secret"]}, "fetch_files.0"),
        ({"code": "", "fetch_files": ["ok", "/etc/passwd"]}, "fetch_files.1"),
        ({"code": "", "fetch_files": ["f"] * 9}, "fetch_files"),
    ],
)
def test_malformed_requests_are_refused_by_field(service, body, field):
    response = service.post(body)
    assert response.status_code == 422
    assert [error["field"] for error in response.json()["errors"]] == [field]


@pytest.mark.parametrize("path", ["/v1/run", "/run_code"])
def test_names_that_are_no_unicode_are_refused_and_not_stumbled_over(service, path):
    content = b'{"code": "print(1)", "language": "python", "files": {"\\ud800": "!"}, "\\ud800": 1}'
    response = service.http.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code < 500, response.text


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"code": "\\ud800", "x": "\\ud800"}'])
def test_bodies_that_are_no_request_are_refused(service, content):
    response = service.http.post("/v1/run", content=content, headers={"content-type": "application/json"})
    assert 400 <= response.status_code < 500


def test_code_that_is_no_unicode_is_rejected(service):
    content = b'{"code": "print(\'\\ud800\')"}'
    response = service.http.post("/v1/run", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 200
    assert response.json()["outcome"] == "rejected"


def test_null_bytes_are_the_code_s_affair(service):
    assert service.run("\0print(1)\n1/0")["outcome"] in ("ok", "exception")  # differs among 3.11 releases


@pytest.mark.parametrize("mode", ["warm", "fresh"])
def test_files_are_given(service, mode):
    content = base64.b64encode(b"\x00data").decode()
    answer = service.run("print(open('in.bin', 'rb').read())", files={"in.bin": content}, mode=mode)
    assert answer["stdout"] == "b'\\x00data'\n"


def test_a_batch_is_answered_in_order(service):
    items = [{"code": f"print({k})", "id": str(k)} for k in range(6)] + [
        {"code": "1/0"},
        {"code": "#" * 300_000},
    ]
    response = service.post({"items": items}, "/v1/batch")
    results = response.json()["results"]
    assert [result["stdout"] for result in results[:6]] == [f"{k}\n" for k in range(6)]
    assert [result["id"] for result in results[:6]] == [str(k) for k in range(6)]
    assert [result["outcome"] for result in results[6:]] == ["exception", "rejected"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "items"),
        ({"items": []}, "items"),
        ({"items": [{"code": ""}] * 1025}, "items"),
        ({"items": [{"code": "", "stdin": 1}]}, "items.0.stdin"),
        ({"items": [{"code": "", "limits": {"wall_s": -1}}]}, "items.0.limits.wall_s"),
    ],
)
def test_malformed_batches_are_refused_by_field(service, body, field):
    response = service.post(body, "/v1/batch")
    assert response.status_code == 422
    assert [error["field"] for error in response.json()["errors"]] == [field]


def test_the_profile_of_scipy_gives_the_same(service, wait_until):
    code = "import scipy.optimize as o; print(round(o.brentq(lambda x: x**2 - 2, 0, 2), 6))"
    assert service.run(code, limits={"wall_s": 60})["stdout"] == "1.414214\n"
    count_modules = "import scipy, sys; print(sum(name.startswith('scipy.') for name in sys.modules))"
    wait_until(lambda: int(service.run(count_modules, limits={"wall_s": 60})["stdout"]) > 100)
    assert service.run(code)["stdout"] == "1.414214\n"


def test_random_numbers_differ_from_run_to_run(service):
    code = "import random as r, numpy.random as n; print(r.random(), n.rand(), n.default_rng().random())"
    first, second = (service.run(code)["stdout"].split() for _ in range(2))
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_more_output_than_a_pipe_holds(service):
    """A service that reads only after the exit would block the snippet at 64 KiB for ever."""
    answer = service.run("import sys\nfor s in (sys.stdout, sys.stderr): s.write('ab' * 200_000 + 'end')")
    assert answer["outcome"] == "ok"
    for stream in ("stdout", "stderr"):
        assert answer[stream].startswith("abab") and answer[stream].endswith("abend")
        assert answer["truncated"][stream]
        assert len(answer[stream]) < 66_000


def test_a_smaller_budget_of_output(service):
    answer = service.run("print('0123456789' * 10)", limits={"output_bytes": 40})
    assert answer["stdout"] == "012345678901234567890123456789\n[61 bytes left out]\n123456789\n"


def test_bytes_that_are_not_utf8(service):
    answer = service.run("import os; os.write(1, b'a\\xffb\\xe2\\x82'); os.write(2, b'\\x80')")
    assert (answer["outcome"], answer["stdout"], answer["stderr"]) == ("ok", "a\ufffdb\ufffd", "\ufffd")


def test_memory_of_the_service_does_not_grow_with_output(service):
    def resident_kb():
        pids = [service.pid, *service.processes()]
        return sum(int((service.proc / str(pid) / "statm").read_text().split()[1]) * 4 for pid in pids)

    service.run("while True: print('x' * 100_000)")
    before = resident_kb()
    for _ in range(5):
        assert service.run("while True: print('x' * 100_000)")["outcome"] == "output_limit"
    assert resident_kb() - before < 20_000
