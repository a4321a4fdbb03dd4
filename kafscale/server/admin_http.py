"""The admin endpoint: `/healthz` (the process runs), `/readyz` (it serves), `/metrics` (Prometheus' text format).

h11 over trio; GET and HEAD only, keep-alive.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

import attrs
import h11
import trio

from kafscale.metrics import Metrics

RECEIVE_BYTES = 16 << 10
REQUEST_TIMEOUT_SECONDS = 30.0
CONNECTIONS_MAX_COUNT = 64  # scrapers and probes; more than that is a mistake or an attack
TEXT = "text/plain; charset=utf-8"
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


@attrs.frozen
class Page:
    """What is answered to one path."""

    status: HTTPStatus
    content_type: str
    body: str


@attrs.define(eq=False)
class AdminServer:
    """`not_ready` says why the broker does not serve, or None if it does."""

    metrics: Metrics
    not_ready: Callable[[], str | None]
    _connection_count: int = attrs.field(default=0, init=False)

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection, until it closes, errs or idles."""
        self._connection_count += 1
        try:
            if self._connection_count <= CONNECTIONS_MAX_COUNT:
                await self._serve_requests(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            pass
        finally:
            self._connection_count -= 1
            await trio.aclose_forcefully(stream)

    async def _serve_requests(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        while True:
            with trio.move_on_after(REQUEST_TIMEOUT_SECONDS) as timeout:
                request = await _next_request(connection, stream)
                if request is None:
                    return
                await self._answer(connection, stream, request)
            if timeout.cancelled_caught or connection.our_state is not h11.DONE:
                return
            if connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()

    async def _answer(self, connection: h11.Connection, stream: trio.SocketStream, request: h11.Request) -> None:
        page = self.page(request.method, request.target.partition(b"?")[0])
        body = page.body.encode()
        headers = [("content-type", page.content_type), ("content-length", str(len(body)))]
        data = connection.send(h11.Response(status_code=page.status, headers=headers)) or b""
        if request.method != b"HEAD":
            data += connection.send(h11.Data(data=body)) or b""
        data += connection.send(h11.EndOfMessage()) or b""
        await stream.send_all(data)

    def page(self, method: bytes, path: bytes) -> Page:
        if method not in (b"GET", b"HEAD"):
            return Page(HTTPStatus.METHOD_NOT_ALLOWED, TEXT, "GET and HEAD only\n")
        if path == b"/healthz":
            return Page(HTTPStatus.OK, TEXT, "ok\n")
        if path == b"/readyz":
            reason = self.not_ready()
            return Page(HTTPStatus.OK, TEXT, "ready\n") if reason is None else _unavailable(reason)
        if path == b"/metrics":
            return Page(HTTPStatus.OK, EXPOSITION, self.metrics.expose())
        return Page(HTTPStatus.NOT_FOUND, TEXT, "there are /healthz, /readyz and /metrics\n")


def _unavailable(reason: str) -> Page:
    return Page(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, f"{reason}\n")


async def _next_request(connection: h11.Connection, stream: trio.SocketStream) -> h11.Request | None:
    """The next request, its body thrown away; None at the end of the connection."""
    request = None
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(RECEIVE_BYTES))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.EndOfMessage):
            return request
        elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            return None
