"""An HTTP server in threads, with or without TLS, for stand-ins of servers that programs ask."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _Server(ThreadingHTTPServer):
    daemon_threads = True


class _TlsServer(_Server):
    """Does the TLS handshake in the connection's thread, so that a client that sends nothing blocks no other."""

    def __init__(self, context: ssl.SSLContext, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._context = context

    def finish_request(self, request: Any, client_address: Any) -> None:
        try:
            secured = self._context.wrap_socket(request, server_side=True)
        except OSError:
            return  # of a client that does not trust it, or shows no certificate
        with secured:
            super().finish_request(secured, client_address)


@contextmanager
def http_server(handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve until the block ends; yields the URL without a final slash. A TLS `context` makes it an https server."""
    server = (_Server if context is None else partial(_TlsServer, context))(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, name="http", daemon=True)
    thread.start()
    try:
        yield f"http{'' if context is None else 's'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
