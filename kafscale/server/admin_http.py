"""The admin endpoint: `/healthz` (the process runs), `/readyz` (it serves), `/metrics` (Prometheus' text format).

    POST /flush?topic=NAME    takes what is not in the bucket yet there, of these topics (`topic` may repeat) or of all;
                              answers with a line of JSON each second, `FlushProgress`, the last one when it is done

h11 over trio, keep-alive. All but `/flush` are for GET and HEAD.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from http import HTTPStatus
from urllib.parse import parse_qs

import attrs
import h11
import trio

from kafscale.concurrency.nurseries import ungrouped
from kafscale.log.flush.flusher import FlushReport
from kafscale.log.log import Log
from kafscale.metrics import Metrics

RECEIVE_BYTES = 16 << 10
REQUEST_TIMEOUT_SECONDS = 30.0
CONNECTIONS_MAX_COUNT = 64  # scrapers and probes; more than that is a mistake or an attack
TEXT = "text/plain; charset=utf-8"
JSON_LINES = "application/x-ndjson"
FLUSH_PATH = "/flush"
FLUSH_PROGRESS_SECONDS = 1.0
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


@attrs.frozen
class Page:
    """What is answered to one path."""

    status: HTTPStatus
    content_type: str
    body: str


@attrs.frozen(kw_only=True)
class FlushProgress:
    """A line of the answer to `POST /flush`. `wanted_bytes` is what there was to flush when it began."""

    done: bool
    segments: int
    bytes: int
    wanted_bytes: int
    seconds: float


@attrs.define(eq=False)
class AdminServer:
    """`not_ready` says why the broker does not serve, or None if it does; `log` is asked only then."""

    metrics: Metrics
    not_ready: Callable[[], str | None]
    log: Callable[[], Log]
    _connection_count: int = attrs.field(default=0, init=False)

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection, until it closes, errs or idles."""
        self._connection_count += 1
        try:
            if self._connection_count <= CONNECTIONS_MAX_COUNT:
                await self._serve_requests(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, h11.RemoteProtocolError):
            pass
        finally:
            self._connection_count -= 1
            await trio.aclose_forcefully(stream)

    async def _serve_requests(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        while True:
            request = None
            with trio.move_on_after(REQUEST_TIMEOUT_SECONDS):
                request = await _next_request(connection, stream)
            if request is None:
                return
            path, _, query = request.target.decode("latin-1").partition("?")
            if request.method == b"POST" and path == FLUSH_PATH:
                await self._flush(connection, stream, parse_qs(query).get("topic", []))
            else:
                with trio.fail_after(REQUEST_TIMEOUT_SECONDS):
                    await _send_page(connection, stream, self.page(request.method, path), request.method != b"HEAD")
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()

    def page(self, method: bytes, path: str) -> Page:
        if path == FLUSH_PATH:
            return Page(HTTPStatus.METHOD_NOT_ALLOWED, TEXT, "POST only\n")
        if method not in (b"GET", b"HEAD"):
            return Page(HTTPStatus.METHOD_NOT_ALLOWED, TEXT, "GET and HEAD only\n")
        if path == "/healthz":
            return Page(HTTPStatus.OK, TEXT, "ok\n")
        if path == "/readyz":
            reason = self.not_ready()
            return Page(HTTPStatus.OK, TEXT, "ready\n") if reason is None else _unavailable(reason)
        if path == "/metrics":
            return Page(HTTPStatus.OK, EXPOSITION, self.metrics.expose())
        return Page(HTTPStatus.NOT_FOUND, TEXT, "there are /healthz, /readyz, /metrics and /flush\n")

    async def _flush(self, connection: h11.Connection, stream: trio.SocketStream, topics: Sequence[str]) -> None:
        reason = self.not_ready()
        if reason is not None:
            await _send_page(connection, stream, _unavailable(reason))
            return
        log = self.log()
        for topic in topics:
            if topic not in log.by_name:
                await _send_page(connection, stream, Page(HTTPStatus.NOT_FOUND, TEXT, f"there is no topic '{topic}'\n"))
                return
        headers = [("content-type", JSON_LINES), ("transfer-encoding", "chunked")]
        await stream.send_all(connection.send(h11.Response(status_code=HTTPStatus.OK, headers=headers)) or b"")
        await _flush_and_tell(log, frozenset(topics) or None, connection, stream)
        await stream.send_all(connection.send(h11.EndOfMessage()) or b"")


async def _flush_and_tell(
    log: Log, topics: frozenset[str] | None, connection: h11.Connection, stream: trio.SocketStream
) -> None:
    """Flush, and send a line now and then and at the end. What is under way goes on if the client goes away."""
    report = FlushReport(topics=topics)
    began = trio.current_time()
    done = trio.Event()

    async def flush() -> None:
        await log.flusher.flush_all(report)
        done.set()

    async def tell() -> None:
        line = FlushProgress(
            done=done.is_set(),
            segments=report.segments_count,
            bytes=report.flushed_bytes,
            wanted_bytes=report.wanted_bytes,
            seconds=round(trio.current_time() - began, 3),
        )
        await stream.send_all(connection.send(h11.Data(data=json.dumps(attrs.asdict(line)).encode() + b"\n")) or b"")

    with ungrouped():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flush)
            while not done.is_set():
                with trio.move_on_after(FLUSH_PROGRESS_SECONDS):
                    await done.wait()
                await tell()


async def _send_page(connection: h11.Connection, stream: trio.SocketStream, page: Page, with_body: bool = True) -> None:
    body = page.body.encode()
    headers = [("content-type", page.content_type), ("content-length", str(len(body)))]
    data = connection.send(h11.Response(status_code=page.status, headers=headers)) or b""
    if with_body:
        data += connection.send(h11.Data(data=body)) or b""
    data += connection.send(h11.EndOfMessage()) or b""
    await stream.send_all(data)


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
