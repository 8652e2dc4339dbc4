"""The requests and the answers of the native API."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandbox_service import limits as bounds
from sandbox_service.outcome import OUTCOMES

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class RequestLimits(_Strict):
    """Limits a request may set, none above the service's own (units: `limits.Limits`)."""

    wall_s: float = Field(bounds.Limits.wall_s, gt=0, le=bounds.MAX_WALL_S)
    cpu_s: float | None = Field(None, gt=0, le=bounds.MAX_CPU_S, description="default: twice wall_s")
    memory_mb: int = Field(bounds.Limits.memory_mb, ge=bounds.MIN_MEMORY_MB, le=bounds.MAX_MEMORY_MB)
    output_bytes: int = Field(bounds.Limits.output_bytes, gt=0, le=bounds.MAX_OUTPUT_BYTES)


class RunRequest(_Strict):
    """A snippet to run."""

    code: str
    stdin: str = ""
    fetch_files: list[FileName] = Field([], max_length=8)
    limits: RequestLimits = RequestLimits()
    id: str | None = Field(None, max_length=200)


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
