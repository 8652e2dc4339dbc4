"""Snippets that misbehave, each with a neighbour that must not notice, and with nothing left afterwards."""

import os
import threading

import pytest

DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
print("done", flush=True)
"""
ATTACKS = {
    "memory": ("x = []\nwhile True: x.append(bytearray(10 << 20))", "memory_limit"),
    "memory_of_many": (
        "import os, time\n"
        "for _ in range(6):\n    if os.fork() == 0:\n        x = b'x' * (60 << 20); time.sleep(600)\n"
        "time.sleep(600)",
        "memory_limit",
    ),
    "shared_memory": ("import mmap; mmap.mmap(-1, 3 << 30)", "exception"),
    "processes": (
        "import os, time\nfor _ in range(80):\n    if os.fork() == 0: time.sleep(600)\ntime.sleep(600)",
        "signal",
    ),
    "doubling_forks": (
        "import os, time\nfor _ in range(7): os.fork()\ntime.sleep(600)",
        "signal",
    ),
    "forks_in_new_sessions": (
        "import os, time\n"
        "for _ in range(80):\n    if os.fork() == 0: os.setsid(); time.sleep(600)\n"
        "time.sleep(600)",
        "signal",
    ),
    "daemon_holding_the_pipe": (DAEMON, "ok"),
    "grandchild_past_the_limit": (DAEMON + "time.sleep(600)", "timeout"),
    "all_signals_ignored": (
        "import signal, time\n"
        "for n in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(n, signal.SIG_IGN)\n"
        "time.sleep(600)",
        "timeout",
    ),
    "stopped": ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "timeout"),
    "large_file": ("open('f', 'wb').write(bytes(20 << 20))", "exception"),
    "unreadable_directories": (
        "import os\nos.mkdir('d'); open('d/f', 'w'); os.chmod('d', 0); os.chmod('.', 0)",
        "ok",
    ),
    "deep_directories": ("import os\nfor _ in range(1100): os.mkdir('d'); os.chdir('d')", "ok"),
    "open_files": ("x = [open('/dev/null') for _ in range(1000)]", "exception"),
    "closed_streams": ("import os, time; os.close(1); os.close(2); time.sleep(0.3)", "ok"),
    "zombies": (
        "import os, time\nfor _ in range(30):\n    if os.fork() == 0: os._exit(0)\ntime.sleep(0.3)",
        "ok",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack(service, attack):
    code, outcome = ATTACKS[attack]
    lanes = len(service.processes())
    answers = []
    limits = {"wall_s": 1 if outcome == "timeout" else 20, "memory_mb": 256}
    attacker = threading.Thread(target=lambda: answers.append(service.run(code, limits=limits)))
    attacker.start()
    neighbour = service.run("print(sum(range(1000)))", limits={"wall_s": 30})
    attacker.join()
    assert (neighbour["outcome"], neighbour["stdout"]) == ("ok", "499500\n")
    assert answers[0]["outcome"] == outcome, answers[0]
    assert len(service.processes()) == lanes
    assert service.boxes() == []


def test_the_answer_does_not_wait_for_a_grandchild(service):
    """The daemon holds stdout for ten minutes, the limit is a minute: only the run itself counts."""
    answer = service.run(DAEMON, limits={"wall_s": 60})
    assert answer["stdout"] == "done\n"
    assert answer["wall_ms"] < 30_000


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
        pids = [service.process.pid, *service.processes()]
        return sum(int(open(f"/proc/{pid}/statm").read().split()[1]) * 4 for pid in pids)

    service.run("while True: print('x' * 100_000)")
    before = resident_kb()
    for _ in range(5):
        assert service.run("while True: print('x' * 100_000)")["outcome"] == "output_limit"
    assert resident_kb() - before < 20_000


def test_numpy_works_under_the_limits(service):
    answer = service.run("import numpy; print(numpy.ones((200, 200)).dot(numpy.ones((200, 200)))[0, 0])")
    assert (answer["outcome"], answer["stdout"]) == ("ok", "200.0\n")


def test_pools_and_subprocesses_work(service):
    code = """
import multiprocessing, subprocess, sys, threading
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(abs, [-1, -2]))
print(subprocess.run([sys.executable, "-c", "print(3)"], capture_output=True, text=True).stdout.strip())
thread = threading.Thread(target=print, args=(4,)); thread.start(); thread.join()
"""
    assert service.run(code)["stdout"] == "[1, 2]\n3\n4\n"


def test_a_snippet_that_removes_its_surroundings(service):
    code = "import os, shutil; shutil.rmtree(os.path.dirname(os.path.dirname(os.getcwd())))"
    assert service.run(code)["retryable"] is False
    assert [service.run("print(1)")["outcome"] for _ in range(2)] == ["ok", "ok"]


def test_signals_have_their_usual_effect(service):
    code = "import os, signal; os.kill(os.getpid(), signal.{})"
    assert service.run(code.format("SIGTERM"))["signal"] == 15
    assert "KeyboardInterrupt" in service.run(code.format("SIGINT"))["stderr"]


def test_many_mixed_runs_leave_nothing(service):
    def descriptors():
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in [service.process.pid, *service.processes()]]

    before = descriptors()
    lanes, folders = service.processes(), len(list(service.scratch.rglob("*")))
    codes = ["print(1)", "1/0", "open('f', 'w').write('x' * 1000)", DAEMON, "import os; os.abort()"]
    for k in range(60):
        service.run(codes[k % len(codes)])
    assert service.processes() == lanes
    assert len(list(service.scratch.rglob("*"))) == folders
    assert descriptors() == before


def test_a_snippet_that_kills_its_lane(service):
    """Its signals do reach the lane at this tier: an infrastructure fault, and the service goes on."""
    answer = service.run(DAEMON + "import signal; os.kill(os.getppid(), signal.SIGKILL); time.sleep(600)")
    assert (answer["outcome"], answer["retryable"]) == ("infra_error", True)
    for _ in range(2):  # one on each lane
        assert service.run("print(1)")["outcome"] == "ok"
    assert len(service.processes()) == 2
