"""HTTP servers in threads, with or without TLS: of any handler, of raw bytes, and an issuer's token endpoint."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import attrs

from tests.devtools.processes.sasl import sign

CLIENT_ID, CLIENT_SECRET = "an app", "s:cret/&"


@attrs.frozen
class Asked:
    form: dict[str, list[str]]
    credentials: str
    content_type: str


@attrs.define(kw_only=True)
class Endpoint:
    """Returns the `answers` in turn, each a status and a body, and then tokens for alice."""

    url: str = ""
    answers: list[tuple[int, Any]] = attrs.field(factory=list)
    token: Callable[[], str] = sign
    asked: list[Asked] = attrs.field(factory=list)


@contextmanager
def token_endpoint(context: ssl.SSLContext | None = None) -> Iterator[Endpoint]:
    """Serve until the block ends. `context` is of TLS, if it is to have it."""
    endpoint = Endpoint()
    with http_server(_handler(endpoint), context) as url:
        endpoint.url = f"{url}/token"
        yield endpoint


def _handler(endpoint: Endpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            kind, _, encoded = self.headers["authorization"].partition(" ")
            assert (kind, self.path) == ("Basic", "/token")
            credentials = base64.b64decode(encoded).decode()
            endpoint.asked.append(Asked(parse_qs(body.decode()), credentials, self.headers["content-type"]))
            status, answer = endpoint.answers.pop(0) if endpoint.answers else (200, {"access_token": endpoint.token()})
            written = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(written)))
            self.end_headers()
            self.wfile.write(written)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return Handler


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


@contextmanager
def sending_server(pieces: Callable[[], Iterable[bytes]], *, pause_seconds: float = 0.0) -> Iterator[str]:
    """Answer each connection's first bytes with these pieces, a pause before each, until the client closes it."""

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            for piece in pieces():
                time.sleep(pause_seconds)
                connection.sendall(piece)

    def serve(listening: socket.socket) -> None:
        with suppress(OSError):  # closed at the end
            while True:
                threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
