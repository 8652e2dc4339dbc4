"""What operators and load balancers ask for: `/health`, `/ready`, `/metrics`, `/v1/ping`."""

import dataclasses

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse

from sandbox_service import __version__, isolation
from sandbox_service.server.service import Service


def _health(service: Service) -> dict:
    admission = service.admission
    return {
        "status": "ok" if service.ready else "stopping",
        "version": __version__,
        "isolation": service.tier,
        "layers": isolation.report(service.mechanisms),
        "limits": {
            "default": dataclasses.asdict(service.settings.limits),
            "max": dataclasses.asdict(service.settings.caps),
        },
        "lanes": service.settings.lane_count,
        "queue": {"limit": service.settings.queue, "waiting": admission.waiting},
    }


def _gauges(service: Service) -> dict:
    admission, slots = service.admission, service.slots
    gauges = {
        ("lanes", ()): len(slots),
        ("lanes_busy", ()): admission.busy,
        ("queue_length", ()): admission.waiting,
        ("ready", ()): service.ready,
        ("tier", (("name", service.tier),)): 1,
        ("template_starts", ()): service.template_starts,
        ("lane_deaths", ()): sum(slot.deaths for slot in slots),
        ("lanes_recycled", ()): sum(slot.recycled for slot in slots),
        ("oom_kills", ()): sum(slot.oom_kills for slot in slots),
    }
    for name, layer in isolation.layers(service.mechanisms).items():
        gauges["layer_grade", (("layer", name),)] = layer.grade
    return gauges


def operations_routes(service: Service) -> APIRouter:
    """Routes that need no token."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> dict:
        return _health(service)

    @router.get("/ready")
    async def ready() -> JSONResponse:
        return JSONResponse({"ready": service.ready}, status_code=200 if service.ready else 503)

    @router.get("/metrics")
    async def metrics() -> PlainTextResponse:
        text = service.metrics.text(_gauges(service))
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    @router.get("/v1/ping")
    async def ping() -> JSONResponse:
        return JSONResponse("pong")

    return router
