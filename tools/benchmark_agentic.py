"""Measures the tool loop: a toy policy on one core, the real sandbox service on another, tools that are slow.

The policy is random, so its vocabulary is spelled such that it writes code blocks after segments of very
different lengths (a quarter of the median to ten times it): what stops a segment is the real automaton, on
the device. An episode has three turns with a call in each; each call runs a real snippet in the service, and
the client holds the answer back for the latency. `python tools/benchmark_rollout.py --json` runs this too.

Fields beside those of the other benchmarks: `device_waited` (share of the time without any program running
or queued on the device, over the run and before its last 5 % of episodes), `slot_occupancy` (tokens sampled
over slots times steps), `padding_share` (of the positions that prefill and extend computed),
`recompilations`, and the quantiles of the segments' lengths.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import queue
import random
import statistics
import sys
import tempfile
import threading
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

LATENCIES_MS = (0, 50, 500)
SNIPPET = "import math\nprint(math.comb(40, 20) % 1009)"
OPENING, CLOSING, NEWLINE = 0.5, 0.06, 0.02  # shares of the vocabulary; all else is plain text


class Spelling:
    """A tokenizer whose ids spell, at the shares above, fences and text."""

    def __init__(self, size: int):
        self.size, self.stop_ids = size, (size - 1,)
        counts = [int(share * size) for share in (OPENING, CLOSING, NEWLINE)]
        fences = [b"```python\nx"] * counts[0] + [b"\n```"] * counts[1] + [b"\n"] * counts[2]
        self.token_bytes = fences + [b"x "] * (size - len(fences) - 1) + [None]

    def encode(self, text: str) -> list[int]:
        """An id a byte: what they spell matters to nobody."""
        return list(text.encode())


class SlowTool:
    """Runs SNIPPET in place of whatever is asked for, and answers `latency_s` after the service."""

    def __init__(self, client, latency_s: float):
        self._client, self._latency_s = client, latency_s
        self._due = queue.PriorityQueue()
        self._numbers = iter(range(10**9))
        self._thread = threading.Thread(target=self._deliver, daemon=True)
        self._thread.start()

    def submit(self, code: str) -> concurrent.futures.Future:
        """Starts the snippet."""
        answer = concurrent.futures.Future()
        call = self._client.submit(SNIPPET)
        call.add_done_callback(
            lambda call: self._due.put(
                (time.monotonic() + self._latency_s, next(self._numbers), answer, call)
            )
        )
        return answer

    def _deliver(self):
        while True:
            due, _, answer, call = self._due.get()
            if call is None:
                return
            time.sleep(max(due - time.monotonic(), 0))
            if answer.set_running_or_notify_cancel():
                answer.set_result(call.result())

    def close(self):
        """Ends the thread."""
        self._due.put((0.0, -1, None, None))
        self._thread.join()


class Watched:
    """An engine of which is noted when the device has work, and how much of it is padding."""

    def __init__(self, engine):
        self._engine = engine
        self.busy: list[tuple[float, float]] = []
        self.computed = self.real = 0
        self._begun, self._reports = None, queue.SimpleQueue()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def prefill(self, params, prompts):
        """See Engine."""
        self._begin()
        width = -(-max(map(len, prompts)) // self.sizes.prefill_tokens) * self.sizes.prefill_tokens
        self.computed += self.prefill_rows * width
        self.real += sum(len(ids) - 1 for ids in prompts)
        return self._engine.prefill(params, prompts)

    def fork(self, pool, starts):
        """See Engine."""
        self._begin()
        return self._engine.fork(pool, starts)

    def extend(self, params, continuations):
        """See Engine."""
        self._begin()
        rows, width = self.sizes.extend_rows, self.sizes.extend_tokens
        lengths = [len(ids) for _, _, ids, _ in continuations]
        for first in range(0, len(lengths), rows):
            self.computed += rows * width * -(-max(lengths[first : first + rows]) // width)
        self.real += sum(lengths)
        return self._engine.extend(params, continuations)

    def decode(self, params, temperature, truncated=False):
        """See Engine."""
        self._begin()
        report = self._engine.decode(params, temperature, truncated)
        self._reports.put((self._begun, report))
        self._begun = None
        return report

    def _begin(self):
        self._begun = self._begun or time.monotonic()

    def _watch(self):
        while (item := self._reports.get()) is not None:
            begun, report = item
            report.tokens_SxC.block_until_ready()
            self.busy.append((begun, time.monotonic()))

    def close(self):
        """Waits for the last report."""
        self._reports.put(None)
        self._thread.join()

    def waited(self, start: float, stop: float) -> float:
        """Seconds of an interval in which the device had nothing to do."""
        idle, at = 0.0, start
        for begun, ready in sorted(self.busy):
            idle += max(min(begun, stop) - at, 0.0)
            at = max(at, ready)
        return idle + max(stop - at, 0.0)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The workload; the model is that of the other benchmarks."""

    slots: int = 32
    prompts: int = 24
    samples: int = 8
    prompt: int = 64
    turns: int = 3
    turn_tokens: int = 256
    chunk: int = 8
    extend_rows: int = 2


def main():
    """Prints one JSON line a latency."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="JSON lines (there is no other form)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--latencies", type=int, nargs="*", default=LATENCIES_MS, help="milliseconds")
    for field in dataclasses.fields(Sizes):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    arguments = vars(parser.parse_args())
    sizes = Sizes(**{field.name: arguments[field.name] for field in dataclasses.fields(Sizes)})
    for row in agentic_rows(sizes, arguments["latencies"], arguments["repeats"]):
        print_row(row)


def print_row(row: dict):
    """One JSON object on a line of its own."""
    print(json.dumps(row), flush=True)


def agentic_rows(sizes: Sizes, latencies_ms, repeats: int):
    """Rows in the form of the peer benchmarks; the process stays on the first core that it may use."""
    from taorl_jax.tool_use.local_sandbox import LocalSandbox
    from taorl_jax.tool_use.sandbox_client import SandboxClient

    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        log = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "sandbox.log"
        os.sched_setaffinity(0, {cores[-1]})  # inherited by the service
        service = stack.enter_context(LocalSandbox(lanes=2, min_isolation="weak", log_path=log))
        os.sched_setaffinity(0, {cores[0]})
        client = stack.enter_context(
            SandboxClient(
                [service.url],
                wall_s=10,
                memory_mb=512,
                max_concurrent=64,
                patience_s=60,
                min_isolation="weak",
            )
        )
        world = _World(sizes)
        for latency_ms in latencies_ms:
            yield _row(world, client, latency_ms, repeats, min(len(cores), 2))


class _World:
    """The toy policy, its engine and its prompts."""

    def __init__(self, sizes: Sizes):
        import jax
        import jax.numpy as jnp

        from taorl_jax.config import base_config
        from taorl_jax.data.pipeline import Prompt
        from taorl_jax.data.problem import Problem
        from taorl_jax.distributed.mesh import make_mesh
        from taorl_jax.models.model_config import ModelConfig
        from taorl_jax.models.transformer import Decoder, unstack_layers
        from taorl_jax.rollout.engine import Engine
        from taorl_jax.rollout.stopping import build_stop_table

        model = ModelConfig(2048, 256, 1024, 4, 4, 2, 64, 4096, rope_theta=1e6)
        token = jnp.zeros((1, 1), jnp.int32)
        boxed = Decoder(model).init(jax.random.key(0), token, token)["params"]
        params = jax.tree.map(lambda box: box.value, boxed, is_leaf=lambda box: hasattr(box, "names"))
        self.sizes, self.params = sizes, unstack_layers(params)
        self.tokenizer = Spelling(model.vocab_size)
        config = base_config()
        config.policy.compute_dtype = config.policy.cache_dtype = "float32"
        r = config.rollout
        r.slots, r.chunk, r.prefill_rows, r.cache_bucket = sizes.slots, sizes.chunk, 4, 128
        r.extend_rows, r.extend_tokens, r.observation_tokens = sizes.extend_rows, 32, 64
        r.prompt_tokens, r.turn_tokens, r.max_turns = sizes.prompt, sizes.turn_tokens, sizes.turns
        r.context_tokens = sizes.prompt + sizes.turns * (sizes.turn_tokens + r.observation_tokens)
        self.config = config
        table = build_stop_table(self.tokenizer.token_bytes, model.vocab_size)
        self.engine = Engine(model, make_mesh(1, 1, 1), r, config.policy, table, self.tokenizer.stop_ids)
        rng = random.Random(0)
        problem = Problem("p", "q", "0", "")
        self.prompts = [
            Prompt(draw, problem, [rng.randrange(2048) for _ in range(sizes.prompt)])
            for draw in range(sizes.prompts)
        ]

    def roll_out(self, client, latency_s: float):
        """(seconds, stats, trajectories, the watched engine, when 95 % of the episodes had ended)."""
        from taorl_jax.rollout.scheduler import TRAINING, Draw, Scheduler

        engine, tool, ends = Watched(self.engine), SlowTool(client, latency_s), []
        scheduler = Scheduler(engine, self.tokenizer, tool, self.config)
        start = time.monotonic()
        trajectories, stats = scheduler.run(
            self.params,
            self.prompts,
            self.sizes.samples,
            Draw(0, TRAINING, 0),
            temperature=1.0,
            on_finished=lambda trajectory: ends.append(time.monotonic()),
        )
        stop = time.monotonic()
        engine.close()
        tool.close()
        most = ends[int(0.95 * len(ends)) - 1]
        shares = engine.waited(start, stop) / (stop - start), engine.waited(start, most) / (most - start)
        return stop - start, stats, trajectories, engine, shares


def _row(world: _World, client, latency_ms: int, repeats: int, cpus: int) -> dict:
    import jax

    begun = time.perf_counter()
    world.roll_out(client, latency_ms / 1000)
    first_s, compiled = time.perf_counter() - begun, []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if "backend_compile" in event else None
    )
    runs = [world.roll_out(client, latency_ms / 1000) for _ in range(repeats)]
    jax.monitoring.clear_event_listeners()
    seconds = sorted(run[0] for run in runs)
    _, stats, trajectories, engine, shares = sorted(runs, key=lambda run: run[0])[len(runs) // 2]
    tokens = sum(int(t.loss_mask.sum()) for t in trajectories)
    segments = [call.span[1] - call.span[0] for t in trajectories for call in t.calls]
    return {
        "peer": "taorl_jax",
        "what": "agentic",
        "latency_ms": latency_ms,
        "median_s": round(statistics.median(seconds), 4),
        "min_s": round(seconds[0], 4),
        "max_s": round(seconds[-1], 4),
        "tokens_per_s": round(tokens / statistics.median(seconds), 1),
        "first_call_s": round(first_s, 2),
        "repeats": repeats,
        "load1": round(os.getloadavg()[0], 2),
        "cpus": cpus,
        "device_waited": round(shares[0], 4),
        "device_waited_before_tail": round(shares[1], 4),
        "slot_occupancy": round(stats.decode_tokens / stats.decode_slots, 4),
        "padding_share": round(1 - engine.real / engine.computed, 4),
        "recompilations": len(compiled),
        "episodes": len(trajectories),
        "calls": len(segments),
        "tokens": tokens,
        "segment_quantiles": {q: int(np.quantile(segments, q)) for q in (0.25, 0.5, 0.75, 0.95, 1.0)},
        "sizes": dataclasses.asdict(world.sizes),
    }


if __name__ == "__main__":
    main()
