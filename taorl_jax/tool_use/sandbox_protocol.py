"""What the client and the sandbox service say to each other: one request, one reply, and what each means."""

import base64
import os
from pathlib import Path

import httpx

from taorl_jax.tool_use import final_answer
from taorl_jax.tool_use.result import CODE_OUTCOMES, SandboxFailure, SandboxResult

ISOLATION_TIERS = ("weak", "medium", "strong")
_BUSY_STATUSES = (429, 502, 503, 504)
_HELPER = Path(final_answer.__file__).read_text(encoding="utf-8")


class InfraFault(Exception):
    """A fault of the sandbox that may pass; its text is for people.

    Attributes:
      answered: whether some service did answer.
      busy: whether it only had no room.
      retry_after_s: seconds that it asked us to wait.
    """

    def __init__(self, reason: str, *, answered: bool, busy: bool = False, retry_after_s: float = 0.0):
        super().__init__(reason)
        self.answered, self.busy, self.retry_after_s = answered, busy, retry_after_s


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


def authorization() -> dict[str, str]:
    """The headers for services that ask for a bearer token: that of the environment, SANDBOX_TOKEN."""
    token = os.environ.get("SANDBOX_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def request_body(code: str, limits: dict, deadline_s: float, stdin: str = "") -> dict:
    """The request that runs `code` with `final_answer` at hand, if its turn comes within `deadline_s`."""
    return {
        "code": with_final_answer(code),
        "stdin": stdin,
        "fetch_files": [final_answer.RECORD_FILE],
        "limits": limits,
        "deadline_s": deadline_s,
    }


def read_reply(url: str, response: httpx.Response) -> SandboxResult:
    """What a reply says of a snippet.

    Raises:
      InfraFault: the service could not run it now.
      SandboxFailure: it refused the request, or it is no sandbox service.
    """
    if response.status_code in _BUSY_STATUSES:
        reason = f"{url}: HTTP {response.status_code}"
        busy = response.status_code == 429
        raise InfraFault(reason, answered=True, busy=busy, retry_after_s=_retry_after_s(response))
    if response.status_code != 200:
        raise SandboxFailure(f"{url} refused a snippet: HTTP {response.status_code} {response.text[:500]}")
    try:
        answer = response.json()
        if answer["outcome"] not in CODE_OUTCOMES:
            raise InfraFault(f"{url}: {answer['outcome']}: {answer['stderr'].strip()}", answered=True)
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


def _retry_after_s(response: httpx.Response) -> float:
    """The header's seconds; 0 without it or for its date form, which our service does not send."""
    value = response.headers.get("retry-after", "")
    return float(value) if value.isdecimal() else 0.0


def describe(error: Exception) -> str:
    """The type of an error, and its text if it has one."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
