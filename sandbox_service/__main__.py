"""`python -m sandbox_service`: serves until SIGTERM, or until its parent is gone."""

import argparse
import contextlib
import json
import os
import socket
import sys
import threading

import uvicorn

from sandbox_service.app import create_app

_EXIT_NO_ADDRESS = 2


class _Server(uvicorn.Server):
    """Tells on stdout where it listens, once it does."""

    async def startup(self, sockets=None):
        await super().startup(sockets)
        host, port = sockets[0].getsockname()[:2]
        print(json.dumps({"url": f"http://{host}:{port}"}), flush=True)


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
        print(f"sandbox_service: cannot listen on {host}:{port}: {error.strerror}", file=sys.stderr)
        sys.exit(_EXIT_NO_ADDRESS)
    return listener


def _arguments() -> argparse.Namespace:
    cores = os.cpu_count() or 1
    parser = argparse.ArgumentParser("sandbox_service", description="Runs Python snippets over HTTP.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="0: any free one (default %(default)s)")
    parser.add_argument(
        "--lanes", type=int, default=0, help=f"snippets at once (default: a core each, {cores})"
    )
    parser.add_argument(
        "--queue", type=int, default=1024, help="requests that may wait (default %(default)s)"
    )
    parser.add_argument("--die-with-parent", action="store_true", help="stop when stdin reaches its end")
    args = parser.parse_args()
    if args.lanes < 0 or args.queue < 0:
        parser.error("--lanes and --queue must not be negative")
    args.lanes = args.lanes or cores
    return args


def main():
    """Parses the command line and serves."""
    args = _arguments()
    listener = _listen(args.host, args.port)
    config = uvicorn.Config(
        create_app(args.lanes, args.queue),
        loop="asyncio",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    if args.die_with_parent:
        threading.Thread(target=_stop_at_end_of_stdin, args=(server,), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # raised again by uvicorn after an orderly end
        server.run(sockets=[listener])


if __name__ == "__main__":
    main()
