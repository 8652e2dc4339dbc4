"""Snippets that attack, in each privilege mode, each beside a neighbour that must not notice."""

import threading

import pytest

from sandbox_service.zygote.process_tree import children

FORK = "import os, time\n"
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
print("done", flush=True)
"""
# The code, and the outcomes that are right for it.
ATTACKS = {
    "memory": ("x = []\nwhile True: x.append(bytearray(10 << 20))", {"memory_limit"}),
    "memory_at_once": ("bytearray(10 << 30)", {"memory_limit"}),
    "memory_of_many": (
        FORK + "for _ in range(20):\n"
        "    if os.fork() == 0: x = b'x' * (60 << 20); time.sleep(600)\n"
        "time.sleep(600)",
        {"memory_limit"},
    ),
    "shared_memory": ("import mmap; mmap.mmap(-1, 3 << 30)", {"exception"}),
    "fork_bomb": (
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        {"timeout", "cpu_limit"},
    ),
    "processes": (
        FORK + "for _ in range(80):\n    if os.fork() == 0: time.sleep(600)\ntime.sleep(600)",
        {"exception"},
    ),
    "processes_in_new_sessions": (
        FORK + "for _ in range(80):\n    if os.fork() == 0: os.setsid(); time.sleep(600)\ntime.sleep(600)",
        {"exception"},
    ),
    "threads": (
        "import threading, time\n"
        "for _ in range(80): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        {"exception"},
    ),
    "daemon_holding_the_pipe": (DAEMON, {"ok"}),
    "grandchild_past_the_limit": (DAEMON + "time.sleep(600)", {"timeout"}),
    "all_signals_ignored": (
        "import signal, time\n"
        "for n in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(n, signal.SIG_IGN)\n"
        "time.sleep(600)",
        {"timeout"},
    ),
    "stopped": ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", {"timeout"}),
    "busy": ("import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass", {"timeout"}),
    "large_file": ("open('f', 'wb').write(bytes(20 << 20))", {"exception"}),
    "full_disk": (
        "import time\nfor k in range(5):\n    with open(f'f{k}', 'wb') as f: f.write(b'x' * (15 << 20))\n"
        "time.sleep(600)",
        {"exception", "signal"},
    ),
    "many_files": (
        "import time\nfor k in range(3000): open(f'f{k}', 'w').close()\ntime.sleep(600)",
        {"exception", "signal"},
    ),
    "unreadable_directories": (
        "import os\nos.mkdir('d'); open('d/f', 'w'); os.chmod('d', 0); os.chmod('.', 0)",
        {"ok"},
    ),
    "deep_directories": ("import os\nfor _ in range(900): os.mkdir('d'); os.chdir('d')", {"ok"}),
    "open_files": ("x = [open('/dev/null') for _ in range(1000)]", {"exception"}),
    "output": ("while True: print('x' * 100_000)", {"output_limit"}),
    "errors": ("import sys\nwhile True: print('x' * 100_000, file=sys.stderr)", {"output_limit"}),
    "closed_streams": ("import os, time; os.close(1); os.close(2); time.sleep(0.1)", {"ok", "nonzero_exit"}),
    "zombies": (
        FORK + "for _ in range(30):\n    if os.fork() == 0: os._exit(0)\ntime.sleep(0.1)",
        {"ok"},
    ),
    "segfault": ("import ctypes; ctypes.string_at(0)", {"signal"}),
    "kill_all": ("import os\ntry: os.kill(-1, 9)\nexcept OSError: pass\nprint('here')", {"ok"}),
    "kill_parent": (
        "import os\ntry: os.kill(os.getppid() or 1, 9)\nexcept OSError: pass\nprint('here')",
        {"ok"},
    ),
    "removes_its_surroundings": (
        "import os, shutil; shutil.rmtree(os.path.dirname(os.path.dirname(os.getcwd())), ignore_errors=True)",
        {"ok", "timeout"},
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack(service_of_mode, attack):
    service = service_of_mode
    code, outcomes = ATTACKS[attack]
    before = service.processes()
    answers = []
    limits = {"wall_s": 0.7 if "timeout" in outcomes else 20, "memory_mb": 256}
    attacker = threading.Thread(target=lambda: answers.append(service.run(code, limits=limits)))
    attacker.start()
    neighbour = service.run("print(sum(range(1000)))", limits={"wall_s": 30})
    attacker.join()
    assert (neighbour["outcome"], neighbour["stdout"]) == ("ok", "499500\n")
    assert answers[0]["outcome"] in outcomes, answers[0]
    assert service.run("print('next')")["stdout"] == "next\n"
    after = service.processes()
    assert len(after) == len(before)
    assert len(set(before) - set(after)) <= (attack == "memory_of_many")  # the lane is replaced after that
    assert service.boxes() == []


REFUSED = {
    "write_etc": "open('/etc/hosts', 'a')",
    "write_usr": "open('/usr/x', 'w')",
    "write_root": "open('/x', 'w')",
    "write_interpreter": "import os; open(os.__file__, 'a')",
    "read_shadow": "open('/etc/shadow')",
    "read_home": "import os; os.listdir('/root/.ssh') if os.path.exists('/root/.ssh') else open('/root/x')",
    "read_service": "open({repository!r} + '/pyproject.toml')",
    "read_hostname": "open('/etc/hostname')",
    "list_of_lane": "import os; open(f'/proc/{{os.getppid() or 3}}/environ').read()",
    "tcp": "import socket; socket.create_connection(('127.0.0.1', {port}))",
    "udp": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "ipv6": "import socket; socket.socket(socket.AF_INET6)",
    "unix": "import socket; socket.socket(socket.AF_UNIX)",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "packet": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "vsock": "import socket; socket.socket(socket.AF_VSOCK)",
    "inet_pair": "import socket; socket.socketpair(socket.AF_INET)",
    "chroot": "import os; os.chroot('.')",
    "nice": "import os; os.nice(-5)",
    "setuid": "import os; os.setuid(0); raise PermissionError if os.geteuid() else SystemExit(0)",
    "hostname": "import socket; socket.sethostname('x')",
    "clock": "import time; time.clock_settime(time.CLOCK_REALTIME, 0)",
}


@pytest.mark.parametrize("attempt", REFUSED)
def test_refused(service_of_mode, attempt):
    service = service_of_mode
    code = REFUSED[attempt].format(repository=str(service.repository), port=service.http.base_url.port)
    answer = service.run(code)
    assert answer["outcome"] == "exception", answer
    assert "Error" in answer["stderr"].splitlines()[-1]
    assert "AddressInUse" not in answer["stderr"]


SYSCALLS = {
    # name: (x86_64, aarch64, arguments, error)
    "ptrace": (101, 117, (0, 0, 0, 0), "EPERM"),
    "mount": (165, 40, (0, 0, 0, 0), "EPERM"),
    "unshare_user": (272, 97, (0x10000000,), "EPERM"),
    "clone_user": (56, 220, (0x10000011, 0, 0, 0), "EPERM"),
    "setns": (308, 268, (0, 0), "EPERM"),
    "bpf": (321, 280, (0, 0, 0), "EPERM"),
    "io_uring_setup": (425, 425, (1, 0), "EPERM"),
    "keyctl": (250, 219, (0, 0, 0), "EPERM"),
    "userfaultfd": (323, 282, (0,), "EPERM"),
    "perf_event_open": (298, 241, (0, 0, 0, 0), "EPERM"),
    "process_vm_readv": (310, 270, (1, 0, 0, 0), "EPERM"),
    "shmget": (29, 194, (0, 4096, 0o1600), "EPERM"),
    "terminal_injection": (16, 29, (0, 0x5412, 0), "EPERM"),
    "clone3": (435, 435, (0, 0), "ENOSYS"),
    "of_the_future": (900, 900, (0,), "ENOSYS"),
}


@pytest.mark.parametrize("name", SYSCALLS)
def test_system_call_is_refused(service_of_mode, name):
    x86_64, aarch64, arguments, error = SYSCALLS[name]
    code = f"""
import ctypes, errno, os
number = {{"x86_64": {x86_64}, "aarch64": {aarch64}}}[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(number, *map(ctypes.c_long, {arguments})), errno.errorcode[ctypes.get_errno()])
"""
    assert service_of_mode.run(code)["stdout"] == f"-1 {error}\n"


def test_nothing_of_the_host_is_seen(service_of_mode):
    """No environment, no descriptors, no processes, no capabilities of the service."""
    service = service_of_mode
    code = """
import os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(sorted(os.listdir("/proc/self/fd"))[:3], len(os.listdir("/proc/self/fd")))
print(*(status[name].strip() for name in ("CapEff", "CapPrm", "NoNewPrivs", "Seccomp")))
print([name for name in os.environ if "SECRET" in name])
try:
    print(len([name for name in os.listdir("/proc") if name.isdigit()]) <= 2)
except PermissionError:
    print(True)
"""
    none = "0" * 16
    assert service.run(code)["stdout"] == f"['0', '1', '2'] 4\n{none} {none} 1 2\n[]\nTrue\n"


def test_the_answer_does_not_wait_for_a_grandchild(service_of_mode):
    """The daemon holds stdout for ten minutes, the limit is a minute: only the run itself counts."""
    answer = service_of_mode.run(DAEMON, limits={"wall_s": 60})
    assert answer["stdout"] == "done\n"
    assert answer["wall_ms"] < 30_000


def test_the_tier_says_what_there_is(service_of_mode):
    """Each layer that is told to be active is attacked in this file."""
    health = service_of_mode.health()
    assert all(layer["active"] for layer in health["layers"].values())
    by_lesser_means = {name for name, layer in health["layers"].items() if layer["missing"]}
    assert health["isolation"] == ("medium" if by_lesser_means else "strong")
    if service_of_mode.mode == "container":
        assert {"filesystem", "processes"} <= by_lesser_means
    if service_of_mode.mode == "root":
        assert by_lesser_means <= {"memory"}


def test_legitimate_code_works(service_of_mode):
    code = """
import subprocess, sys, threading, tempfile, decimal, numpy
print(subprocess.run([sys.executable, "-c", "print(3)"], capture_output=True, text=True).stdout.strip())
print(subprocess.run("echo 5 | cat", shell=True, capture_output=True, text=True).stdout.strip())
thread = threading.Thread(target=print, args=(4,)); thread.start(); thread.join()
with tempfile.NamedTemporaryFile() as file: file.write(b"x")
print(numpy.ones((200, 200)).dot(numpy.ones((200, 200)))[0, 0])
"""
    answer = service_of_mode.run(code, limits={"wall_s": 60})
    assert (answer["outcome"], answer["stdout"]) == ("ok", "3\n5\n4\n200.0\n"), answer


def test_pools_of_processes_work_where_shared_memory_is_to_be_had(service_of_mode):
    code = """
import multiprocessing
with multiprocessing.get_context("fork").Pool(2) as pool: print(pool.map(abs, [-1, -2]))
"""
    answer = service_of_mode.run(code, limits={"wall_s": 60})
    if service_of_mode.mode == "container":  # only the scratch directory can be written to
        assert answer["outcome"] == "exception"
    else:
        assert answer["stdout"] == "[1, 2]\n"


def test_no_zombies_and_no_descriptors_are_left(service_of_mode):
    service = service_of_mode

    def descriptors():
        pids = (service.pid, *service.processes())
        return [len(list((service.proc / str(pid) / "fd").iterdir())) for pid in pids]

    service.run("print(1)"), service.run("print(1)")
    before = service.processes(), descriptors()
    codes = ["print(1)", "1/0", "open('f', 'w').write('x' * 1000)", DAEMON, "import os; os.abort()"]
    for k in range(20):
        service.run(codes[k % len(codes)])
    after = service.processes(), descriptors()
    assert after[0] == before[0]
    assert after[1][0] <= before[1][0]  # the service itself may have closed connections meanwhile
    assert after[1][1:] == before[1][1:]
    assert set(children(service.pid)) <= set(service.processes())
