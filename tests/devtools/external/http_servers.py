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
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs

import attrs

from kafscale.testing.http_server import http_server
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
