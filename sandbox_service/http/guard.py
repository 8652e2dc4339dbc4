"""Before a request is read: who sends it, and how much."""

import hmac

from starlette.responses import JSONResponse

# Escapes make JSON up to six times as long as its text; a batch has many texts.
MAX_BODY_BYTES = 64 << 20


class Guard:
    """ASGI middleware that asks for a bearer token on POST and refuses bodies that are too long.

    Args:
      app: the application.
      token: None: everyone may call.
    """

    def __init__(self, app, token: str | None):
        self._app, self._expected = app, f"Bearer {token}".encode() if token else None

    async def __call__(self, scope, receive, send):
        """Handles one connection, as ASGI has it."""
        if scope["type"] == "http" and scope["method"] == "POST":
            headers = dict(scope["headers"])
            if self._expected and not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
                await JSONResponse({"detail": "a bearer token is needed"}, status_code=401)(
                    scope, receive, send
                )
                return
            length = headers.get(b"content-length", b"")
            if not length.isdigit():
                await JSONResponse({"detail": "Content-Length is needed"}, status_code=411)(
                    scope, receive, send
                )
                return
            if int(length) > MAX_BODY_BYTES:
                message = f"the body has {int(length)} bytes, at most {MAX_BODY_BYTES} are read"
                await JSONResponse({"detail": message}, status_code=413)(scope, receive, send)
                return
        await self._app(scope, receive, send)
