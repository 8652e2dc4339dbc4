"""`POST /run_code` as SandboxFusion has it, the way verl's client sends and reads it.

That client retries HTTP 504 and nothing else; whatever other failure it meets becomes a score. So a fault of
ours is answered by 504 (`overload_status`), and only what the code did by 200.
"""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from sandbox_service.http.calls import FieldError, check_files, limits_of, refusal, run_admitted, too_large
from sandbox_service.http.schema import PLAIN_NAME
from sandbox_service.limits import MIN_MEMORY_MB
from sandbox_service.server.admission import Refused
from sandbox_service.server.service import Service, job

_QUEUE_BEYOND_COMPILE_S = 8.0  # the client reads for compile + run + 10 s
_KILLED_EXIT_CODE = 137


class RunCodeRequest(BaseModel):
    """SandboxFusion's request; fields that we do not know are ignored."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    code: str
    language: str = "python"
    stdin: str | None = None
    compile_timeout: float = Field(10.0, ge=0)
    run_timeout: float = Field(10.0, gt=0)
    memory_limit_MB: int = -1
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []


def _limits(service: Service, request: RunCodeRequest):
    """What is above our caps, which this client can't know, is lowered."""
    caps, memory_mb = service.settings.caps, request.memory_limit_MB
    wanted = {"wall_s": min(request.run_timeout, caps.wall_s)}
    if memory_mb > 0:
        wanted["memory_mb"] = min(max(memory_mb, MIN_MEMORY_MB), caps.memory_mb)
    return limits_of(service.settings, wanted)


def _run_result(answer: dict) -> dict:
    outcome, stderr = answer["outcome"], answer["stderr"]
    result = {"execution_time": answer["wall_ms"] / 1000, "stdout": answer["stdout"], "stderr": stderr}
    if outcome in ("timeout", "cpu_limit"):
        return {**result, "status": "TimeLimitExceeded", "return_code": None}
    code = answer["exit_code"]
    if outcome in ("memory_limit", "output_limit"):
        code = _KILLED_EXIT_CODE
    elif code is None:
        code = -answer["signal"] if answer["signal"] else 1
    if outcome == "memory_limit" and "MemoryError" not in stderr:
        result["stderr"] = stderr + "MemoryError\n"
    return {**result, "status": "Finished", "return_code": code}


def _response(answer: dict) -> dict:
    run_result = _run_result(answer)
    succeeded = run_result["status"] == "Finished" and run_result["return_code"] == 0
    return {
        "status": "Success" if succeeded else "Failed",
        "message": "",
        "compile_result": None,
        "run_result": run_result,
        "executor_pod_name": None,
        "files": answer["files"],
    }


def sandbox_fusion_routes(service: Service) -> APIRouter:
    """The route of SandboxFusion's clients."""
    router = APIRouter()

    @router.post("/run_code")
    async def run_code(request: RunCodeRequest, http_request: Request):
        if request.language not in ("python", "pytest"):
            raise FieldError("language", f"{request.language!r} is not run here, only 'python' is")
        limits, stdin = _limits(service, request), request.stdin or ""
        files = {name: content or "" for name, content in request.files.items()}
        check_files(files)
        fetched = [name for name in request.fetch_files if PLAIN_NAME.fullmatch(name)]  # others can't exist
        if message := too_large(service.settings.caps, request.code, stdin, files):
            raise FieldError("code", message)
        wait_s = min(request.compile_timeout + _QUEUE_BEYOND_COMPILE_S, service.settings.queue_s)
        work = job(request.code, limits, stdin=stdin, files=files, fetch_files=fetched)
        status = service.settings.overload_status
        try:
            service.admission.check(wait_s)
            answer, _ = await run_admitted(service, http_request, work, wait_s, "run_code")
        except Refused as refused:
            return refusal(service, "run_code", refused, status)
        if answer["outcome"] == "infra_error":
            return JSONResponse(
                {"detail": answer["stderr"]}, status_code=status, headers={"Retry-After": "1"}
            )
        return _response(answer)

    return router
