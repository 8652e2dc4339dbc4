"""Measures the sandbox service against plain interpreters, in one interleaved run: `--json` for programs.

On a machine that has other work only the ratios mean something, so what is compared takes turns.
"""

import argparse
import concurrent.futures
import contextlib
import http.client as http_client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from sandbox_service.zygote import process_tree

SYMPY = "import sympy, numpy; x = sympy.symbols('x'); print(sympy.factor(x**4 - 1), numpy.arange(3).sum())"
PRINT = "print(6 * 7)"
BRENTQ = "import scipy.optimize as o; print(round(o.brentq(lambda x: x**2 - 2, 0, 2), 6))"
_REPOSITORY = Path(__file__).resolve().parents[1]
_KILL_LIMIT_S = 0.3
_OVERLOAD = 20  # times the lanes


@contextlib.contextmanager
def service(*arguments: str):
    """A client of a service that lives as long as the context, and its process id."""
    command = [sys.executable, "-m", "sandbox_service", "--port", "0", "--die-with-parent", *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=_REPOSITORY
    )
    try:
        limits = httpx.Limits(max_connections=1000)
        url = json.loads(process.stdout.readline())["url"]
        with httpx.Client(base_url=url, timeout=120, limits=limits) as http:
            yield http, process.pid
    finally:
        process.stdin.close()
        process.wait()


def run(http: httpx.Client, code: str, **fields) -> dict:
    """The answer to one snippet, which must be one that ran."""
    response = http.post("/v1/run", json={"code": code, **fields})
    response.raise_for_status()
    return response.json()


def timed_ms(action) -> float:
    """Milliseconds that an action takes."""
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1000


def latencies(full, bare, rounds: int) -> dict:
    """Medians in ms of a plain interpreter, of all layers, of no layers, of a new interpreter in the jail."""

    def plain():
        subprocess.run([sys.executable, "-I", "-c", SYMPY], check=True, stdout=subprocess.DEVNULL)

    ways = {
        "python -I -c": plain,
        "service": lambda: run(full, SYMPY),
        "service, no layers": lambda: run(bare, SYMPY),
        "service, mode fresh": lambda: run(full, SYMPY, mode="fresh", limits={"wall_s": 60}),
        "service, scipy": lambda: run(full, BRENTQ),
        "service, print": lambda: run(full, PRINT),
    }
    slow = ("python -I -c", "service, mode fresh")
    times = {name: [] for name in ways}
    for round_ in range(rounds):
        for name, way in ways.items():
            if name not in slow or round_ % 3 == 0:
                times[name].append(timed_ms(way))
    return {name: round(statistics.median(values), 1) for name, values in times.items()}


def throughput(http, code: str, seconds: float, concurrency: int) -> tuple[float, int, int]:
    """Snippets per second that ran, refusals that can be retried, and answers that are wrong."""
    end, counts = time.monotonic() + seconds, {"ran": 0, "refused": 0, "wrong": 0}
    lock = threading.Lock()

    body, headers = json.dumps({"code": code}), {"Content-Type": "application/json"}

    def work():
        # Of the standard library, since it shares the cores with what it measures.
        connection = http_client.HTTPConnection(http.base_url.host, http.base_url.port, timeout=120)
        while time.monotonic() < end:
            connection.request("POST", "/v1/run", body, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            if response.status == 429 and response.headers["retry-after"]:
                kind, pause_s = "refused", int(response.headers["retry-after"]) * random.uniform(0.5, 1)
            else:
                right = response.status == 200 and answer["outcome"] == "ok"
                kind, pause_s = "ran" if right else "wrong", 0.0
            with lock:
                counts[kind] += time.monotonic() < end or kind == "wrong"
            time.sleep(pause_s)

    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        for future in [pool.submit(work) for _ in range(concurrency)]:
            future.result()
    return counts["ran"] / seconds, counts["refused"], counts["wrong"]


def cpu_ms(http, pid: int, code: str, runs: int) -> float:
    """CPU time that the whole service spends on one snippet, ms: what is left of a rate on a busy machine."""
    before = process_tree.cpu_s([pid, *process_tree.descendants(pid)])
    for _ in range(runs):
        run(http, code)
    spent = process_tree.cpu_s([pid, *process_tree.descendants(pid)]) - before
    return round(spent / runs * 1000, 1)


def kill_latency_ms(http, rounds: int) -> float:
    """Median wait of the client beyond the wall limit, ms: kill, clean-up, and the way there and back."""
    code, late = "while True: pass", []
    for _ in range(rounds):
        started = time.perf_counter()
        assert run(http, code, limits={"wall_s": _KILL_LIMIT_S})["outcome"] == "timeout"
        late.append((time.perf_counter() - started - _KILL_LIMIT_S) * 1000)
    return round(statistics.median(late), 1)


def private_mb(http) -> float:
    """MiB that a running sympy snippet has for itself."""
    code = SYMPY + (
        "\nfields = dict(line.split(':') for line in open('/proc/self/smaps_rollup').read().splitlines()[1:])"
        "\nprint(sum(int(fields[k].split()[0]) for k in ('Private_Clean', 'Private_Dirty')))"
    )
    return round(int(run(http, code)["stdout"].split()[-1]) / 1024, 1)


def measure(rounds: int, seconds: float) -> dict:
    """All numbers."""
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0]
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as no_layers, contextlib.ExitStack() as stack:
        no_layers.write("layers = false\nmin_isolation = 'weak'\n")
        no_layers.flush()
        full, pid = stack.enter_context(service("--min-isolation", "weak", "--queue", str(4 * cores)))
        bare, _ = stack.enter_context(service("--config", no_layers.name))
        medians = latencies(full, bare, rounds)
        sympy_rate, _, _ = throughput(full, SYMPY, seconds, 2 * cores)
        print_rate, _, _ = throughput(full, PRINT, seconds, 2 * cores)
        loaded = [throughput(full, SYMPY, seconds, count * cores) for count in (2, _OVERLOAD, 2, _OVERLOAD)]
        saturated, overloaded = (loaded[0][0] + loaded[2][0]) / 2, (loaded[1][0] + loaded[3][0]) / 2
        return {
            "load": round(load, 1),
            "cores": cores,
            "isolation": full.get("/health").json()["isolation"],
            "median_ms": medians,
            "ratio": round(medians["python -I -c"] / medians["service"], 1),
            "layers_cost_ms": round(medians["service"] - medians["service, no layers"], 1),
            "sympy_per_s_and_core": round(sympy_rate / cores, 1),
            "print_per_s_and_core": round(print_rate / cores, 1),
            "sympy_cpu_ms": cpu_ms(full, pid, SYMPY, 50),
            "print_cpu_ms": cpu_ms(full, pid, PRINT, 50),
            "private_mb": private_mb(full),
            "kill_latency_ms": kill_latency_ms(full, 10),
            "goodput_at_overload": round(overloaded / saturated, 2),
            "refused_retryably": loaded[1][1] + loaded[3][1],
            "mislabelled": sum(wrong for _, _, wrong in loaded),
        }


TARGETS = {
    "ratio": (">=", 8),
    "layers_cost_ms": ("<=", 5),
    "sympy_per_s_and_core": (">=", 30),
    "print_per_s_and_core": (">=", 50),
    "private_mb": ("<=", 10),
    "kill_latency_ms": ("<=", 100),
    "goodput_at_overload": (">=", 0.9),
    "mislabelled": ("<=", 0),
}


def main():
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=60, help="of latencies (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="of each load (default %(default)s)")
    args = parser.parse_args()
    numbers = measure(args.rounds, args.seconds)
    if args.json:
        print(json.dumps(numbers, indent=2))
        return
    for name, value in numbers.items():
        sign, bound = TARGETS.get(name, ("", ""))
        print(f"{name:22} {value} {f'(busy machine: {sign} {bound})' if sign else ''}")


if __name__ == "__main__":
    main()
