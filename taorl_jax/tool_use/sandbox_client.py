"""The client of the sandbox service: snippets in, futures of results out.

A fault of the code is a result; a fault of the sandbox is retried and then raised, so that no outage can be
mistaken for something the policy did.
"""

import asyncio
import base64
import concurrent.futures
import dataclasses
import itertools
import random
import threading
import time
from pathlib import Path

import httpx

from taorl_jax.tool_use import final_answer
from taorl_jax.tool_use.result import CODE_OUTCOMES, SandboxDown, SandboxFailure, SandboxResult

_HEALTH_TIMEOUT_S = 10.0
_BUSY_STATUSES = (429, 502, 503, 504)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_HELPER = Path(final_answer.__file__).read_text(encoding="utf-8")


def with_final_answer(code: str) -> str:
    """The script that defines `final_answer` and then runs `code` as the main module.

    The code is compiled by itself, so it may begin with a docstring or `from __future__`, and errors are
    reported at its own line numbers.
    """
    return (
        f"{_HELPER}\n\n"
        "final_answer = make_final_answer(__import__('os').path.abspath(RECORD_FILE))\n"
        "del make_final_answer\n"
        "__doc__ = None\n"
        f"_code = {code!r}\n"
        "exec(compile(globals().pop('_code'), '<code>', 'exec', dont_inherit=True))\n"
    )


@dataclasses.dataclass
class _InfraFault(Exception):
    """A fault of the sandbox that may pass.

    Attributes:
      reason: for people.
      answered: whether some service did answer.
      retry_after_s: how long it asked us to wait.
    """

    reason: str
    answered: bool
    retry_after_s: float = 0.0


class SandboxClient:
    """Runs snippets on sandbox services, from one background thread.

    Args:
      urls: addresses of the services; each retry goes to the next one.
      wall_s: wall time of a snippet, seconds.
      memory_mb: memory of a snippet, MiB.
      max_concurrent: requests in flight; the rest waits here.
      patience_s: seconds from a snippet's first request within which faults of the sandbox are retried.
    """

    def __init__(self, urls, *, wall_s: float, memory_mb: int, max_concurrent: int, patience_s: float):
        if not urls:
            raise ValueError("`sandbox.urls` names no service")
        self._urls = [url.rstrip("/") for url in urls]
        self._limits = {"wall_s": wall_s, "memory_mb": memory_mb}
        self._patience_s = patience_s
        self._call_s = wall_s + patience_s / 2  # of one request: its run and a fair time in the queue
        self._max_concurrent = max_concurrent
        self._turn = itertools.count()
        self._retries = self._failures = 0
        self._closed = False
        started = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="sandbox-client", daemon=True
        )
        self._thread.start()
        self._loop, self._closing = started.result()

    async def _serve(self, started):
        pool = httpx.Limits(max_connections=None, max_keepalive_connections=self._max_concurrent)
        async with httpx.AsyncClient(timeout=None, limits=pool, trust_env=False) as self._http:
            self._slots = asyncio.Semaphore(self._max_concurrent)
            closing = asyncio.Event()
            started.set_result((asyncio.get_running_loop(), closing))
            await closing.wait()
            calls = asyncio.all_tasks() - {asyncio.current_task()}
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    def submit(self, code: str) -> concurrent.futures.Future:
        """Starts a snippet; the future gives its SandboxResult.

        The future raises SandboxDown if no service answered within `patience_s`, SandboxFailure if they did
        answer but could not run it; it is cancelled by `close`.

        Raises:
          RuntimeError: the client is closed.
        """
        return self._spawn(self._run(code))

    def check(self) -> list[dict]:
        """Asks every service for its health; returns what they said, in the order of `urls`.

        Raises:
          SandboxDown: one does not answer as a sandbox service does.
          ValueError: one does not allow our limits.
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
            response = await self._http.get(f"{url}/health", timeout=_HEALTH_TIMEOUT_S)
            response.raise_for_status()
            health = response.json()
            allowed = health["limits"]["max"]
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
            raise SandboxDown(
                f"no sandbox service answers at {url} ({_describe(error)}); start one there, correct "
                "`sandbox.urls`, or leave `sandbox.urls` empty to have one started"
            ) from error
        for name, value in self._limits.items():
            if value > allowed[name]:
                raise ValueError(f"`sandbox.{name}`={value}: the service at {url} allows {allowed[name]}")
        return health

    async def _run(self, code: str) -> SandboxResult:
        try:
            async with self._slots:
                return await self._run_with_patience(_payload(code, self._limits))
        except SandboxFailure:
            self._failures += 1
            raise

    async def _run_with_patience(self, payload: dict) -> SandboxResult:
        deadline = time.monotonic() + self._patience_s
        turn, attempt, answered = next(self._turn), 0, False
        while True:
            try:
                return await self._request(self._urls[(turn + attempt) % len(self._urls)], payload)
            except _InfraFault as fault:
                answered |= fault.answered
                pause_s = fault.retry_after_s + _jitter(attempt)
                attempt += 1
                if time.monotonic() + pause_s > deadline:
                    raise self._given_up(answered, attempt, fault) from fault
                self._retries += 1
                await asyncio.sleep(pause_s)

    def _given_up(self, answered: bool, attempts: int, fault: _InfraFault) -> SandboxFailure:
        urls = ", ".join(self._urls)
        tried = f"{attempts} attempts in {self._patience_s:g} s (`sandbox.patience_s`); last: {fault.reason}"
        if answered:
            return SandboxFailure(f"the sandbox at {urls} could not run a snippet: {tried}")
        return SandboxDown(f"no sandbox answers at {urls} (`sandbox.urls`): {tried}")

    async def _request(self, url: str, payload: dict) -> SandboxResult:
        try:
            async with asyncio.timeout(self._call_s):
                response = await self._http.post(f"{url}/v1/run", json=payload)
        except TimeoutError:
            raise _InfraFault(f"{url}: no answer within {self._call_s:g} s", answered=False) from None
        except httpx.TransportError as error:
            raise _InfraFault(f"{url}: {_describe(error)}", answered=False) from error
        if response.status_code in _BUSY_STATUSES:
            raise _InfraFault(f"{url}: HTTP {response.status_code}", True, _retry_after_s(response))
        return _result(url, response)


def _payload(code: str, limits: dict) -> dict:
    return {
        "code": with_final_answer(code),
        "fetch_files": [final_answer.RECORD_FILE],
        "limits": limits,
    }


def _jitter(attempt: int) -> float:
    """Seconds to wait after an attempt: full jitter over an exponentially growing window."""
    return random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt))


def _retry_after_s(response: httpx.Response) -> float:
    """The header's seconds; 0 without it or for its date form, which our service does not send."""
    value = response.headers.get("retry-after", "")
    return float(value) if value.isdecimal() else 0.0


def _result(url: str, response: httpx.Response) -> SandboxResult:
    if response.status_code != 200:
        raise SandboxFailure(f"{url} refused a snippet: HTTP {response.status_code} {response.text[:500]}")
    try:
        answer = response.json()
        if answer["outcome"] not in CODE_OUTCOMES:
            raise _InfraFault(f"{url}: {answer['outcome']}: {answer['stderr'].strip()}", answered=True)
        record = answer["files"].get(final_answer.RECORD_FILE)
        return SandboxResult(
            outcome=answer["outcome"],
            stdout=answer["stdout"],
            stderr=answer["stderr"],
            final_answer=None if record is None else base64.b64decode(record).decode("utf-8", "replace"),
            wall_ms=answer["wall_ms"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SandboxFailure(f"{url} does not answer as a sandbox service does: {error!r}") from error


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
