"""A token endpoint (RFC 6749, section 4.4) that answers as a test tells it to."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs

import attrs

from tests.devtools.external.http_server import http_server
from tests.devtools.processes.sasl import sign

CLIENT_ID, CLIENT_SECRET = "an app", "s:cret/&"


@attrs.frozen
class Asked:
    """A request that a client has sent."""

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
