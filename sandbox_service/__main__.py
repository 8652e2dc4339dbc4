"""`python -m sandbox_service`: serves until SIGTERM, or until its parent is gone."""

import argparse
import contextlib
import json
import os
import socket
import sys
import threading

import uvicorn

from sandbox_service import settings as settings_
from sandbox_service.http.app import create_app
from sandbox_service.isolation import TIERS
from sandbox_service.server.service import NotFit, Service

_EXIT_REFUSED = 2
_EXIT_NOT_FIT = 3


class _Server(uvicorn.Server):
    """Tells on stdout where it listens, once it does, and lets runs end before it closes."""

    def __init__(self, config: uvicorn.Config, service: Service):
        super().__init__(config)
        self._service = service
        self.refusal = ""

    async def serve(self, sockets=None):
        try:
            await self._service.start()
        except NotFit as error:
            self.refusal = str(error)
            await self._service.close()
            return
        await super().serve(sockets)

    async def startup(self, sockets=None):
        await super().startup(sockets)
        if self.started:
            host, port = sockets[0].getsockname()[:2]
            url = f"http://{host}:{port}"
            print(json.dumps({"url": url, "isolation": self._service.tier}), flush=True)

    async def shutdown(self, sockets=None):
        self._service.drain()
        await super().shutdown(sockets)
        await self._service.close()


def _stop_at_end_of_stdin(server: uvicorn.Server):
    while os.read(0, 4096):
        pass
    server.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    # asyncio turns Nagle off only for sockets that name their protocol; with it a request takes 40 ms more.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        _refuse(f"cannot listen on {host}:{port}: {error.strerror}")
    return listener


def _refuse(message: str, status: int = _EXIT_REFUSED):
    print(f"sandbox_service: {message}", file=sys.stderr)
    sys.exit(status)


def _arguments() -> argparse.Namespace:
    default = settings_.Settings()
    parser = argparse.ArgumentParser("sandbox_service", description="Runs Python snippets over HTTP.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="0: any free one (default %(default)s)")
    parser.add_argument("--config", metavar="FILE", help="TOML file of settings (see the README)")
    parser.add_argument("--lanes", type=int, help="snippets at once (default: a core each)")
    parser.add_argument("--queue", type=int, help=f"requests that may wait (default {default.queue})")
    parser.add_argument(
        "--min-isolation", choices=TIERS, help=f"least tier to start with (default {default.min_isolation})"
    )
    parser.add_argument("--die-with-parent", action="store_true", help="stop when stdin reaches its end")
    parser.epilog = "A bearer token is asked for if the environment has SANDBOX_TOKEN."
    return parser.parse_args()


def main():
    """Parses the command line and serves."""
    args = _arguments()
    if not sys.platform.startswith("linux"):
        _refuse("runs on Linux only; elsewhere run it in a container or a virtual machine")
    try:
        given = {"lanes": args.lanes, "queue": args.queue, "min_isolation": args.min_isolation}
        settings = settings_.read(args.config, **given)
    except (settings_.SettingsError, OSError) as error:
        _refuse(str(error))
    listener = _listen(args.host, args.port)
    service = Service(settings)
    config = uvicorn.Config(
        create_app(service, os.environ.pop("SANDBOX_TOKEN", None)),
        loop="asyncio",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=75,  # longer than clients keep theirs, or requests meet closing connections
        timeout_graceful_shutdown=round(settings.grace_s) + 2,
    )
    server = _Server(config, service)
    if args.die_with_parent:
        threading.Thread(target=_stop_at_end_of_stdin, args=(server,), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # raised again by uvicorn after an orderly end
        server.run(sockets=[listener])
    if server.refusal:
        _refuse(server.refusal, _EXIT_NOT_FIT)


if __name__ == "__main__":
    main()
