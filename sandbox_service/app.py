"""The HTTP interface: `POST /v1/run` and `GET /health`."""

import asyncio
import contextlib
import dataclasses
import time
import uuid

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from sandbox_service import __version__
from sandbox_service import limits as bounds
from sandbox_service.api import RunRequest, RunResponse
from sandbox_service.lane_pool import LanePool, QueueFull
from sandbox_service.layers import TIER, layers
from sandbox_service.process_tree import adopt_orphans
from sandbox_service.runner import failed

_RETRY_AFTER_S = 1


def _job(request: RunRequest) -> dict:
    limits = request.limits.model_dump()
    limits["cpu_s"] = limits["cpu_s"] or 2 * limits["wall_s"]
    return {
        "code": request.code,
        "stdin": request.stdin,
        "fetch_files": request.fetch_files,
        "limits": limits,
    }


def _too_large(request: RunRequest) -> str | None:
    for name, text, limit in (
        ("code", request.code, bounds.CODE_BYTES),
        ("stdin", request.stdin, bounds.STDIN_BYTES),
    ):
        if (size := len(text.encode("utf-8", "replace"))) > limit:
            return f"{name} has {size} bytes, at most {limit} are run"
    return None


async def _self_test(pool: LanePool):
    """Runs a snippet on every lane.

    Raises:
      RuntimeError: a lane cannot run it; the service must not open.
    """
    async with contextlib.AsyncExitStack() as held:
        for _ in range(pool.lanes):
            lane = await held.enter_async_context(pool.lane())
            answer = await pool.run(lane, _job(RunRequest(code="print('ready')", limits={"wall_s": 60})))
            if answer["outcome"] != "ok" or answer["stdout"] != "ready\n":
                raise RuntimeError(f"the sandbox cannot run a snippet here: {answer}")


async def _run(pool: LanePool, http_request: Request, request: RunRequest) -> tuple[dict, float]:
    """The answer, and the seconds spent in the queue."""
    if message := _too_large(request):
        return failed("rejected", message), 0.0
    arrived = time.monotonic()
    async with pool.lane() as lane:
        queue_s = time.monotonic() - arrived
        if await http_request.is_disconnected():
            return failed("infra_error", "the client went away while its request waited"), queue_s
        return await pool.run(lane, _job(request)), queue_s


async def _name_the_fields(_: Request, error: RequestValidationError) -> JSONResponse:
    """A refusal that names fields and leaves out the input, which may be huge or no valid Unicode."""
    problems = [
        {"field": ".".join(map(str, problem["loc"][1:])) or "body", "message": problem["msg"]}
        for problem in error.errors()
    ]
    return JSONResponse({"errors": problems}, status_code=422)


def create_app(lanes: int, queue: int) -> FastAPI:
    """The service with `lanes` snippets at once and at most `queue` requests waiting."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI):
        adopt_orphans()
        app.state.pool = pool = LanePool(lanes, queue)
        try:
            await _self_test(pool)
            yield
        finally:
            await pool.close()

    app = FastAPI(title="sandbox", version=__version__, lifespan=lifespan)
    app.add_exception_handler(RequestValidationError, _name_the_fields)

    @app.post("/v1/run")
    async def run(request: RunRequest, http_request: Request) -> RunResponse:
        try:
            answer, queue_s = await _run(app.state.pool, http_request, request)
        except QueueFull:
            message = f"{queue} requests wait already"
            raise HTTPException(429, message, headers={"Retry-After": str(_RETRY_AFTER_S)}) from None
        except asyncio.CancelledError:  # by uvicorn, of what still runs when it has to stop
            raise HTTPException(503, "the service is stopping") from None
        return RunResponse(
            id=request.id or uuid.uuid4().hex,
            retryable=answer["outcome"] == "infra_error",
            queue_ms=queue_s * 1000,
            isolation=TIER,
            **answer,
        )

    @app.get("/health")
    async def health() -> dict:
        return {
            "status": "ok",
            "version": __version__,
            "isolation": TIER,
            "layers": layers(),
            "limits": _limits(),
            "lanes": lanes,
            "queue": {"limit": queue, "waiting": app.state.pool.waiting},
        }

    return app


def _limits() -> dict:
    return {
        "default": dataclasses.asdict(bounds.Limits()),
        "max": {
            "wall_s": bounds.MAX_WALL_S,
            "cpu_s": bounds.MAX_CPU_S,
            "memory_mb": bounds.MAX_MEMORY_MB,
            "output_bytes": bounds.MAX_OUTPUT_BYTES,
            "kill_output_bytes": bounds.KILL_OUTPUT_BYTES,
            "processes": bounds.PROCESSES,
            "file_bytes": bounds.FILE_BYTES,
            "open_files": bounds.OPEN_FILES,
            "code_bytes": bounds.CODE_BYTES,
            "stdin_bytes": bounds.STDIN_BYTES,
        },
    }
