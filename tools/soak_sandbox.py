"""Runs many snippets of all kinds: the service's memory, descriptors and processes must stay flat."""

import argparse
import concurrent.futures
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmark_sandbox import PRINT, SYMPY, run, service

from sandbox_service.zygote.process_tree import descendants, proportional_mb

CODES = (
    PRINT,
    SYMPY,
    "1/0",
    "import sys; print(sys.stdin.read()); sys.exit(3)",
    "import os\nif os.fork() == 0: os.setsid(); import time; time.sleep(600)\nprint('daemon')",
    "open('f', 'w').write('x' * 100_000)",
    "print('x' * 300_000)",
    "import os; os.abort()",
    "import subprocess; print(subprocess.run(['echo', '1'], capture_output=True).stdout)",
    "x = bytearray(100 << 20)",
)
RARE = {
    97: ("while True: pass", {"wall_s": 0.2}),
    193: ("x = []\nwhile True: x.append(bytearray(10 << 20))", {"memory_mb": 128}),
    389: ("while True: print('x' * 100_000)", {}),
}


def state(pid: int) -> dict:
    """What may grow: MiB of all processes, descriptors of the service, processes, zombies."""
    pids = [pid, *descendants(pid)]
    zombies = sum(Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[0] == "Z" for one in pids)
    return {
        "memory_mb": round(proportional_mb(pids)),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "processes": len(pids),
        "zombies": zombies,
    }


def snippet(number: int) -> tuple[str, dict]:
    """Code and limits of a run."""
    for every, rare in RARE.items():
        if number % every == every - 1:
            return rare
    return CODES[number % len(CODES)], {}


def main():
    """Soaks; exits with 1 if something grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5000)
    args = parser.parse_args()
    tenth = max(1, args.runs // 10)
    with service("--min-isolation", "weak") as (http, pid):
        states = []
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:

            def one(number):
                code, limits = snippet(number)
                return run(http, code, limits=limits)["outcome"]

            for start in range(0, args.runs, tenth):
                outcomes = list(pool.map(one, range(start, start + tenth)))
                states.append(state(pid))
                faults = outcomes.count("infra_error")
                print(f"{start + tenth:6} runs", states[-1], f"faults of ours: {faults}", flush=True)
                if faults:
                    sys.exit(1)
    first, last = states[min(1, len(states) - 1)], states[-1]
    grew = [name for name in first if last[name] > first[name] + (20 if name == "memory_mb" else 1)]
    print("grew: " + ", ".join(grew) if grew else "flat")
    sys.exit(bool(grew))


if __name__ == "__main__":
    main()
