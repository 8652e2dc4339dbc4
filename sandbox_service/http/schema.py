"""The requests and the answers of the native API."""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandbox_service.limits import MIN_MEMORY_MB
from sandbox_service.outcome import OUTCOMES

PLAIN_NAME = re.compile(r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$")
FileName = Annotated[str, Field(pattern=PLAIN_NAME.pattern)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class RequestLimits(_Strict):
    """Limits a request may set, none above the service's caps (units: `limits.Limits`)."""

    wall_s: float | None = Field(None, gt=0)
    cpu_s: float | None = Field(None, gt=0, description="default: twice wall_s")
    memory_mb: int | None = Field(None, ge=MIN_MEMORY_MB)
    output_bytes: int | None = Field(None, gt=0)


class RunRequest(_Strict):
    """A snippet to run."""

    code: str
    stdin: str = ""
    files: dict[FileName, str] = Field({}, max_length=64, description="name -> base64")
    fetch_files: list[FileName] = Field([], max_length=8)
    limits: RequestLimits = RequestLimits()
    mode: Literal["warm", "fresh"] = Field("warm", description="fresh: a new interpreter in the same jail")
    deadline_s: float | None = Field(
        None, gt=0, description="how long the caller is ready to wait for a slot"
    )
    id: str | None = Field(None, max_length=200)


class BatchRequest(_Strict):
    """Snippets to run, answered in order."""

    items: list[RunRequest] = Field(min_length=1)


class Truncated(BaseModel):
    """Which streams lost their middle."""

    stdout: bool
    stderr: bool


class RunResponse(BaseModel):
    """What became of a snippet; `retryable` tells a fault of ours from one of the code."""

    id: str
    outcome: Literal[OUTCOMES]
    retryable: bool
    exit_code: int | None
    signal: int | None
    stdout: str
    stderr: str
    truncated: Truncated
    files: dict[str, str] = Field(description="base64 of the fetched files that exist")
    wall_ms: float
    cpu_ms: float
    queue_ms: float
    max_rss_kb: int
    isolation: str


class BatchResponse(BaseModel):
    """The answers to a batch, in the order of its items."""

    results: list[RunResponse]
