"""What the HTTP interfaces have in common: limits, sizes, refusals, the way of a job through the service."""

import base64
import binascii
import dataclasses
import math

from fastapi import Request
from fastapi.responses import JSONResponse

from sandbox_service.http.schema import PLAIN_NAME
from sandbox_service.limits import Caps, Limits
from sandbox_service.server.admission import Refused
from sandbox_service.server.log import log
from sandbox_service.server.service import Service
from sandbox_service.settings import Settings


class FieldError(ValueError):
    """A field of a request that can't be taken."""

    def __init__(self, field: str, message: str):
        super().__init__(_printable(message))
        self.field = _printable(field)


def _printable(text: str) -> str:
    """Lone surrogates, which JSON can carry into a request but no answer can carry out, spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def limits_of(settings: Settings, wanted: dict) -> Limits:
    """The limits of a run: what the request wants (None: the default), nowhere above the caps.

    Raises:
      FieldError: naming the limit.
    """
    wanted = {name: value for name, value in wanted.items() if value is not None}
    for name, value in wanted.items():
        if value > (cap := getattr(settings.caps, name)):
            raise FieldError(f"limits.{name}", f"Input should be less than or equal to {cap}")
    if "wall_s" in wanted:
        wanted.setdefault("cpu_s", min(2 * wanted["wall_s"], settings.caps.cpu_s))
    return dataclasses.replace(settings.limits, **wanted)


def check_files(files: dict[str, str]):
    """Refuses files with names that are no plain ones, or that are no base64.

    Raises:
      FieldError: naming the file.
    """
    for name, content in files.items():
        if not PLAIN_NAME.fullmatch(name) or name == "main.py":
            raise FieldError(
                f"files.{name[:100]}", "the name is not a plain one: no directories, not main.py"
            )
        try:
            base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError) as error:
            raise FieldError(f"files.{name}", f"is no base64: {error}") from None


def too_large(caps: Caps, code: str, stdin: str, files: dict[str, str]) -> str | None:
    """Why a job is rejected, if it is."""
    for name, text, limit in (("code", code, caps.code_bytes), ("stdin", stdin, caps.stdin_bytes)):
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            return f"{name} is not valid Unicode: {error.reason}"
        if size > limit:
            return f"{name} has {size} bytes, at most {limit} are run"
    size = sum(len(content) * 3 // 4 for content in files.values())
    return (
        f"files have {size} bytes, at most {caps.files_bytes} are taken" if size > caps.files_bytes else None
    )


def client_of(request: Request) -> str:
    """Whose turn a request takes: its X-Client header, or its address."""
    return request.headers.get("x-client") or (request.client.host if request.client else "")


async def run_admitted(
    service: Service, request: Request, work: dict, wait_s: float, endpoint: str
) -> tuple[dict, float]:
    """The answer to a job, and the seconds that it waited; counted and logged.

    Raises:
      Refused: no slot became free in time.
    """
    answer, queue_s = await service.run(
        work,
        client=client_of(request),
        wait_s=wait_s,
        gone=request.is_disconnected,
    )
    _account(service, endpoint, answer, queue_s)
    return answer, queue_s


def _account(service: Service, endpoint: str, answer: dict, queue_s: float):
    metrics = service.metrics
    metrics.count("runs", 1, endpoint=endpoint, outcome=answer["outcome"])
    metrics.count("truncated", sum(answer["truncated"].values()))
    metrics.observe("run_wall", answer["wall_ms"] / 1000)
    metrics.observe("run_cpu", answer["cpu_ms"] / 1000)
    metrics.observe("queue", queue_s)
    log(
        "run",
        endpoint=endpoint,
        outcome=answer["outcome"],
        wall_ms=round(answer["wall_ms"], 1),
        cpu_ms=round(answer["cpu_ms"], 1),
        queue_ms=round(queue_s * 1000, 1),
    )


def refusal(service: Service, endpoint: str, refused: Refused, status: int) -> JSONResponse:
    """The answer to a request that may be sent again."""
    service.metrics.count("refused", 1, endpoint=endpoint, reason=refused.reason)
    after = str(max(1, math.ceil(refused.retry_after_s)))
    return JSONResponse({"detail": str(refused)}, status_code=status, headers={"Retry-After": after})
