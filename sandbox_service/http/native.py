"""The native API: `POST /v1/run` and `POST /v1/batch`."""

import asyncio
import uuid

from fastapi import APIRouter, Request

from sandbox_service.answer import failed
from sandbox_service.http.calls import (
    FieldError,
    check_files,
    limits_of,
    refusal,
    run_admitted,
    too_large,
)
from sandbox_service.http.schema import BatchRequest, BatchResponse, RunRequest, RunResponse
from sandbox_service.server.admission import Refused
from sandbox_service.server.service import Service, job


def _job(service: Service, request: RunRequest) -> dict | str:
    """The job that a request asks for, or why it is rejected."""
    caps = service.settings.caps
    check_files(request.files)
    limits = limits_of(service.settings, request.limits.model_dump())
    if message := too_large(caps, request.code, request.stdin, request.files):
        return message
    return job(
        request.code,
        limits,
        stdin=request.stdin,
        files=request.files,
        fetch_files=request.fetch_files,
        mode=request.mode,
    )


def _response(service: Service, request: RunRequest, answer: dict, queue_s: float) -> RunResponse:
    return RunResponse(
        id=request.id or uuid.uuid4().hex,
        retryable=answer["outcome"] == "infra_error",
        queue_ms=queue_s * 1000,
        isolation=service.tier,
        **answer,
    )


async def _answer(service, http_request, request, work, wait_s, endpoint) -> RunResponse:
    """Runs one job that was let in already."""
    if isinstance(work, str):
        return _response(service, request, failed("rejected", work), 0.0)
    answer, queue_s = await run_admitted(service, http_request, work, wait_s, endpoint)
    return _response(service, request, answer, queue_s)


async def _item(service, http_request, request, work, wait_s) -> RunResponse:
    """One answer of a batch; what finds no room any more is a fault of ours."""
    try:
        return await _answer(service, http_request, request, work, wait_s, "batch")
    except Refused as refused:
        return _response(service, request, failed("infra_error", str(refused)), 0.0)


def native_routes(service: Service) -> APIRouter:
    """The routes of the native API."""
    router = APIRouter()

    def wait_s(request: RunRequest) -> float:
        return service.settings.queue_s if request.deadline_s is None else request.deadline_s

    @router.post("/v1/run", response_model=RunResponse)
    async def run(request: RunRequest, http_request: Request):
        work = _job(service, request)
        try:
            service.admission.check(wait_s(request))
            return await _answer(service, http_request, request, work, wait_s(request), "run")
        except Refused as refused:
            return refusal(service, "run", refused, 503 if refused.reason == "stopping" else 429)

    @router.post("/v1/batch", response_model=BatchResponse)
    async def batch(request: BatchRequest, http_request: Request):
        items = request.items
        if len(items) > (most := service.settings.caps.batch_items):
            raise FieldError("items", f"has {len(items)} items, at most {most} are run")
        jobs = [_job(service, item) for item in items]
        try:
            service.admission.check(min(map(wait_s, items)), len(items))
        except Refused as refused:
            return refusal(service, "batch", refused, 503 if refused.reason == "stopping" else 429)
        results = await asyncio.gather(
            *(
                _item(service, http_request, item, work, wait_s(item))
                for item, work in zip(items, jobs, strict=True)
            )
        )
        return BatchResponse(results=results)

    return router
