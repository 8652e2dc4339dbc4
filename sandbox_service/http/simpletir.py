"""`POST /faas/sandbox/` as SimpleTIR's client sends and reads it.

That client takes any text on stderr for a failure, and an answer without `run_result` for code that ran and
printed nothing. So a fault of ours is answered by 503, which it retries, and nothing of ours goes to stderr.
"""

import datetime

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from sandbox_service.http.calls import FieldError, limits_of, refusal, run_admitted, too_large
from sandbox_service.server.admission import Refused
from sandbox_service.server.service import Service, job

_QUEUE_S = 15.0  # the client gives up after 30 s, its pause and the run included
_PATHS = ("/faas/sandbox/", "/faas/sandbox", "/faas/sandbox/run_code")


class SandboxRequest(BaseModel):
    """SimpleTIR's request; fields that we do not know are ignored."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    code: str
    stdin: str | None = ""
    language: str = "python"
    compile_timeout: float = Field(1.0, ge=0)
    run_timeout: float = Field(3.0, gt=0)


def _response(answer: dict) -> dict:
    outcome, stderr = answer["outcome"], answer["stderr"]
    if outcome in ("timeout", "cpu_limit"):
        status, stderr = "timeout", "Timeout\n"
    elif outcome == "ok":
        status = "success"
    else:
        status = "runtime_error"
        stderr = stderr or f"{outcome}\n"  # without a text the client would take it for valid
    return {
        "status": status,
        "run_result": {"status": status, "stdout": answer["stdout"], "stderr": stderr},
        "created_at": datetime.datetime.now(datetime.UTC).isoformat(),
    }


def simpletir_routes(service: Service) -> APIRouter:
    """The routes of SimpleTIR's clients."""
    router = APIRouter()

    async def run(request: SandboxRequest, http_request: Request):
        if request.language != "python":
            raise FieldError("language", f"{request.language!r} is not run here, only 'python' is")
        settings, stdin = service.settings, request.stdin or ""
        limits = limits_of(settings, {"wall_s": min(request.run_timeout, settings.caps.wall_s)})
        if message := too_large(settings.caps, request.code, stdin, {}):
            raise FieldError("code", message)
        wait_s = min(_QUEUE_S, settings.queue_s)
        try:
            service.admission.check(wait_s)
            work = job(request.code, limits, stdin=stdin)
            answer, _ = await run_admitted(service, http_request, work, wait_s, "faas")
        except Refused as refused:
            return refusal(service, "faas", refused, 503)
        if answer["outcome"] == "infra_error":
            return JSONResponse({"detail": answer["stderr"]}, status_code=503, headers={"Retry-After": "1"})
        return _response(answer)

    for path in _PATHS:
        router.add_api_route(path, run, methods=["POST"])
    return router
