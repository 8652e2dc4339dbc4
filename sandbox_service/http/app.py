"""The application: every route, who may call it, and how malformed requests are refused."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from sandbox_service import __version__
from sandbox_service.http.calls import FieldError
from sandbox_service.http.guard import Guard
from sandbox_service.http.native import native_routes
from sandbox_service.http.operations import operations_routes
from sandbox_service.http.sandbox_fusion import sandbox_fusion_routes
from sandbox_service.http.simpletir import simpletir_routes
from sandbox_service.server.service import Service


async def _name_the_fields(_: Request, error: RequestValidationError) -> JSONResponse:
    """A refusal that names fields and leaves out the input, which may be huge or no valid Unicode."""
    problems = [
        {"field": ".".join(map(str, problem["loc"][1:])) or "body", "message": problem["msg"]}
        for problem in error.errors()
    ]
    return JSONResponse({"errors": problems}, status_code=422)


async def _name_the_field(_: Request, error: FieldError) -> JSONResponse:
    return JSONResponse({"errors": [{"field": error.field, "message": str(error)}]}, status_code=422)


def create_app(service: Service, token: str | None = None) -> FastAPI:
    """The application of a service.

    Args:
      service: started by the time of the first request.
      token: if given, `POST` needs it as a bearer token.
    """
    app = FastAPI(title="sandbox", version=__version__)
    app.add_exception_handler(RequestValidationError, _name_the_fields)
    app.add_exception_handler(FieldError, _name_the_field)
    for routes in (native_routes, sandbox_fusion_routes, simpletir_routes, operations_routes):
        app.include_router(routes(service))

    app.add_middleware(Guard, token=token)
    return app
