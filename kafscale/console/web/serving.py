"""The process of `kafscale console`: sockets, signals and the web server (Hypercorn's trio worker)."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Callable
from functools import partial

import trio
from hypercorn.config import Config
from hypercorn.trio import serve as serve_asgi

from kafscale.console.settings import ConsoleSettings
from kafscale.console.web.app import make_app

SHUTDOWN_SECONDS = 1.0
HEADERS_MAX_BYTES = 32 << 10
CONNECTION_IDLE_SECONDS = 15


async def serve(settings: ConsoleSettings, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve the pages until SIGTERM or SIGINT."""
    config = Config()
    config.bind = [f"fd://{listener.fileno()}"]
    config.graceful_timeout = SHUTDOWN_SECONDS
    config.h11_max_incomplete_size = HEADERS_MAX_BYTES
    config.keep_alive_timeout = CONNECTION_IDLE_SECONDS
    config.read_timeout = CONNECTION_IDLE_SECONDS
    config.include_server_header = False
    config.errorlog = logging.getLogger("kafscale.console")
    app = make_app(settings)
    try:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:

            async def wait_for_signal() -> None:
                await anext(signals)

            async with trio.open_nursery() as tasks:
                app.state.console.tasks = tasks
                tasks.start_soon(app.state.console.sampling.run)
                async with trio.open_nursery() as nursery:
                    await nursery.start(
                        partial(serve_asgi, app, config, shutdown_trigger=wait_for_signal, mode="asgi")  # type: ignore[arg-type]
                    )
                    on_ready()
                tasks.cancel_scope.cancel()
    finally:
        with trio.move_on_after(SHUTDOWN_SECONDS, shield=True):
            await app.state.console.aclose()
