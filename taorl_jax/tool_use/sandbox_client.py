"""The client of the sandbox service: snippets in, futures of results out.

A fault of the code is a result; a fault of the sandbox is retried and then raised, so that no outage can be
mistaken for something the policy did.
"""

import asyncio
import concurrent.futures
import contextlib
import itertools
import random
import threading
import time

import httpx

from taorl_jax.config import ConfigError
from taorl_jax.tool_use.result import SandboxDown, SandboxFailure, SandboxResult, SandboxTooWeak
from taorl_jax.tool_use.sandbox_protocol import (
    ISOLATION_TIERS,
    InfraFault,
    authorization,
    describe,
    read_reply,
    request_body,
)
from taorl_jax.tool_use.sandbox_replicas import Replica, Replicas

_HEALTH_TIMEOUT_S = 10.0
_POOL_SIZE = 32  # connections; a pool of httpx does work of the square of it for every request
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


class SandboxClient:
    """Runs snippets on sandbox services, from one background thread.

    Args:
      urls: addresses of the services; a retry goes to another one than the attempt before it.
      wall_s: wall time of a snippet, seconds.
      memory_mb: memory of a snippet, MiB.
      max_concurrent: requests in flight; the rest waits here.
      patience_s: seconds from a snippet's first request within which faults of the sandbox are retried; its
        answer, or the failure to get one, comes at most `wall_s` later.
      min_isolation: the tier below which `check` refuses a service.
    """

    def __init__(
        self,
        urls,
        *,
        wall_s: float,
        memory_mb: int,
        max_concurrent: int,
        patience_s: float,
        min_isolation: str,
    ):
        if not urls:
            raise ValueError("`sandbox.urls` names no service")
        self._urls = [url.rstrip("/") for url in urls]
        self._limits = {"wall_s": wall_s, "memory_mb": memory_mb}
        self._patience_s, self._min_isolation = patience_s, min_isolation
        self._call_s = wall_s + patience_s / 2  # of one request: its run and a fair time in the queue
        self._max_concurrent = max_concurrent
        self._replicas, self._pool_turn = Replicas(self._urls), itertools.count()
        self._headers = authorization()
        self._retries = self._failures = 0
        self._last_answer = -1.0  # when any service last ran a snippet
        self._closed = False
        started = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="sandbox-client", daemon=True
        )
        self._thread.start()
        self._loop, self._closing = started.result()

    async def _serve(self, started):
        pool = httpx.Limits(max_connections=None, max_keepalive_connections=_POOL_SIZE)
        async with contextlib.AsyncExitStack() as stack:
            self._pools = [
                await stack.enter_async_context(httpx.AsyncClient(timeout=None, limits=pool, trust_env=False))
                for _ in range(0, self._max_concurrent, _POOL_SIZE)
            ]
            self._slots = asyncio.Semaphore(self._max_concurrent)
            closing = asyncio.Event()
            started.set_result((asyncio.get_running_loop(), closing))
            await closing.wait()
            calls = asyncio.all_tasks() - {asyncio.current_task()}
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    def submit(self, code: str, stdin: str = "") -> concurrent.futures.Future:
        """Starts a snippet, with text on its stdin; the future gives its SandboxResult.

        The future raises SandboxDown if no service answered within `patience_s`, SandboxFailure if they did
        answer but could not run it; it is cancelled by `close`.

        Raises:
          RuntimeError: the client is closed.
        """
        return self._spawn(self._run(code, stdin))

    def check(self) -> list[dict]:
        """Asks every service for its health; returns what they said, in the order of `urls`.

        Raises:
          SandboxDown: one does not answer as a sandbox service does.
          ConfigError: one does not allow our limits.
          SandboxTooWeak: one isolates less than it should.
        """
        return self._spawn(self._check_all()).result()

    def stats(self) -> dict[str, int]:
        """Counts since the start: `retries` (repeated requests), `failures` (snippets given up)."""
        return {"retries": self._retries, "failures": self._failures}

    def close(self):
        """Cancels what is pending and ends the thread."""
        if not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _spawn(self, coroutine) -> concurrent.futures.Future:
        if self._closed:
            coroutine.close()
            raise RuntimeError("the sandbox client is closed")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _check_all(self):
        return await asyncio.gather(*map(self._check_one, self._urls))

    async def _check_one(self, url: str) -> dict:
        try:
            response = await self._pools[0].get(f"{url}/health", timeout=_HEALTH_TIMEOUT_S)
            response.raise_for_status()
            health = response.json()
            allowed, tier = health["limits"]["max"], health["isolation"]
            ISOLATION_TIERS.index(tier)  # a ValueError for what is no tier
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
            raise SandboxDown(
                f"no sandbox service answers at {url} ({describe(error)}); start one there, correct "
                "`sandbox.urls`, or leave `sandbox.urls` empty to have one started"
            ) from error
        if ISOLATION_TIERS.index(tier) < ISOLATION_TIERS.index(self._min_isolation):
            raise SandboxTooWeak(
                f"the isolation of the sandbox at {url} is {tier}, `sandbox.min_isolation` asks for "
                f"{self._min_isolation}; its /health says what is missing. Mend that, or accept less"
            )
        for name, value in self._limits.items():
            if value > allowed[name]:
                raise ConfigError(f"`sandbox.{name}`={value}: the service at {url} allows {allowed[name]}")
        return health

    async def _run(self, code: str, stdin: str) -> SandboxResult:
        try:
            async with self._slots:
                body = request_body(code, self._limits, deadline_s=self._patience_s / 2, stdin=stdin)
                return await self._run_with_patience(body)
        except SandboxFailure:
            self._failures += 1
            raise

    async def _run_with_patience(self, payload: dict) -> SandboxResult:
        started = time.monotonic()
        deadline = started + self._patience_s
        attempt, answered, last_url = 0, False, None
        while True:
            try:
                with self._replicas.lend(avoid=last_url) as replica:
                    last_url = replica.url
                    return await self._request(replica, payload, deadline)
            except InfraFault as fault:
                answered |= fault.answered
                pause_s = fault.retry_after_s + _jitter(attempt)
                attempt += 1
                if time.monotonic() + pause_s > deadline:
                    # Others were answered meanwhile: then it is this snippet, not the sandbox.
                    answered |= self._last_answer > started
                    raise self._given_up(answered, attempt, fault) from fault
                self._retries += 1
                await asyncio.sleep(pause_s)

    def _given_up(self, answered: bool, attempts: int, fault: InfraFault) -> SandboxFailure:
        urls = ", ".join(self._urls)
        tried = f"{attempts} attempts in {self._patience_s:g} s (`sandbox.patience_s`); last: {fault}"
        if answered:
            return SandboxFailure(f"the sandbox at {urls} could not run a snippet: {tried}")
        return SandboxDown(f"no sandbox answers at {urls} (`sandbox.urls`): {tried}")

    async def _request(self, replica: Replica, payload: dict, deadline: float) -> SandboxResult:
        """One attempt, over by the end of our patience and the time of a run."""
        url = replica.url
        call_s = min(self._call_s, deadline + self._limits["wall_s"] - time.monotonic())
        try:
            async with asyncio.timeout(call_s):
                http = self._pools[next(self._pool_turn) % len(self._pools)]
                response = await http.post(f"{url}/v1/run", json=payload, headers=self._headers)
            result = read_reply(url, response)
        except TimeoutError:
            replica.failed(time.monotonic())
            raise InfraFault(f"{url}: no answer within {call_s:.3g} s", answered=False) from None
        except httpx.HTTPError as error:
            replica.failed(time.monotonic())
            raise InfraFault(f"{url}: {describe(error)}", answered=False) from error
        except InfraFault as fault:
            if not fault.busy:
                replica.failed(time.monotonic())
            raise
        replica.answered()
        self._last_answer = time.monotonic()
        return result


def _jitter(attempt: int) -> float:
    """Seconds to wait after an attempt: full jitter over an exponentially growing window."""
    return random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt))
