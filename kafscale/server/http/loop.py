"""An HTTP/1.1 server on h11 over trio: keep-alive, a table of routes, and a bound on everything that a peer sends.

A route answers an `HttpExchange` with a page or a stream. Bodies of requests are ignored. HEAD is answered like GET.
Above CONNECTIONS_MAX_COUNT, the connection whose last request is the oldest is closed for a new one, except for routes
that `keeps_place`, which bound their own requests.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from urllib.parse import parse_qs

import attrs
import h11
import trio

from kafscale.errors import StorageFailed
from kafscale.server.accepting import accept_all
from kafscale.server.quiet_log import QuietLog

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 16 << 10
HEAD_MAX_BYTES = 16 << 10  # a request's line and headers; nginx takes 32 KiB, Tomcat 8
REQUEST_TIMEOUT_SECONDS = 5.0  # for a whole request to come, from the connection or from its first byte on
IDLE_TIMEOUT_SECONDS = 60.0  # between two requests of a connection: Prometheus scrapes each minute by default
SEND_TIMEOUT_SECONDS = 30.0
CONNECTIONS_MAX_COUNT = 64  # scrapers, probes and browsers; more than that is a mistake or an attack
TEXT = "text/plain; charset=utf-8"
READ_METHODS = ("GET", "HEAD")


@attrs.frozen
class Page:
    status: HTTPStatus
    content_type: str
    body: str | bytes
    headers: Sequence[tuple[str, str]] = ()


def text_page(status: HTTPStatus, text: str) -> Page:
    return Page(status, TEXT, f"{text}\n")


UNKNOWN_PAGE = Page(
    HTTPStatus.UNAUTHORIZED,
    TEXT,
    "this needs the token of --admin-token-file, as `Authorization: Bearer TOKEN`\n",
    (("www-authenticate", "Bearer"),),
)


@attrs.frozen(eq=False, kw_only=True, repr=False)
class HttpExchange:
    """One request, and its answer: `send_page`, or `begin`, any number of `send`, and `end`.

    Each raises TooSlowError if the peer does not read, and BrokenResourceError if it is gone.
    """

    request: h11.Request
    path: str
    query: str
    _connection: h11.Connection
    _stream: trio.abc.Stream

    def arguments(self, name: str) -> Sequence[str]:
        return parse_qs(self.query).get(name, [])

    def header(self, name: bytes) -> str | None:
        """Return the values of a header, joined by commas, or None."""
        values = [value.decode("latin-1") for key, value in self.request.headers if key == name]
        return ",".join(values) if values else None

    async def send_page(self, page: Page) -> None:
        body = page.body.encode() if isinstance(page.body, str) else page.body
        headers = [("content-type", page.content_type), ("content-length", str(len(body))), *page.headers]
        events: list[h11.Event] = [h11.Response(status_code=page.status, headers=headers)]
        if self.request.method != b"HEAD":
            events.append(h11.Data(data=body))
        await self._send(*events, h11.EndOfMessage())

    async def begin(self, content_type: str) -> None:
        headers = [("content-type", content_type), ("transfer-encoding", "chunked")]
        await self._send(h11.Response(status_code=HTTPStatus.OK, headers=headers))

    async def send(self, data: bytes) -> None:
        await self._send(h11.Data(data=data))

    async def end(self) -> None:
        await self._send(h11.EndOfMessage())

    async def _send(self, *events: h11.Event) -> None:
        data = b"".join(self._connection.send(event) or b"" for event in events)
        with trio.fail_after(SEND_TIMEOUT_SECONDS):
            await self._stream.send_all(data)


@attrs.frozen(eq=False, repr=False)
class Route:
    """The handler of one path. One that `is_open` needs no token."""

    path: str
    answer: Callable[[HttpExchange], Awaitable[None]]
    methods: Sequence[str] = attrs.field(default=READ_METHODS, kw_only=True)
    keeps_place: bool = attrs.field(default=False, kw_only=True)
    is_open: bool = attrs.field(default=False, kw_only=True)


@attrs.define(eq=False, repr=False)
class HttpServer:
    """Answers requests by its routes. `name` names it in the log.

    `is_known` tells whether a request may use routes that are not open, and `refusal` why its origin may not. `context`
    returns the TLS context of a new connection, whose handshake is part of the wait for its first request.
    """

    name: str
    routes: Sequence[Route]
    is_known: Callable[[h11.Request], bool] = attrs.field(default=lambda _request: True, kw_only=True)
    refusal: Callable[[h11.Request], str | None] = attrs.field(default=lambda _request: None, kw_only=True)
    context: Callable[[], ssl.SSLContext] | None = attrs.field(default=None, kw_only=True)
    _open: dict[trio.CancelScope, None] = attrs.field(factory=dict, init=False)  # by their last request, oldest first
    _keeping_place: set[trio.CancelScope] = attrs.field(factory=set, init=False)  # of these
    _quiet: QuietLog = attrs.field(factory=lambda: QuietLog(logger), init=False)

    async def accept(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Serve connections until cancelled. Raises StorageFailed."""
        async with trio.open_nursery() as nursery:
            await accept_all(listeners, self.serve, name=self.name, nursery=nursery, quiet=self._quiet)

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one connection. Raises StorageFailed."""
        if len(self._open) >= CONNECTIONS_MAX_COUNT:
            self._make_room()
        if self.context is not None:
            stream = trio.SSLStream(stream, self.context(), server_side=True, https_compatible=True)
        scope = trio.CancelScope()
        self._open[scope] = None
        try:
            with scope:
                await self._serve_requests(stream, scope)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, h11.RemoteProtocolError):
            pass
        except StorageFailed:
            raise  # the disk is lost: the broker must stop
        except Exception:
            self._quiet.tell("bugs", "closing a connection of %s after a bug in the broker", self.name, exc_info=True)
        finally:
            self._open.pop(scope, None)
            await trio.aclose_forcefully(stream)

    def _make_room(self) -> None:
        """Close the connection whose last request is the oldest, except for those that keep their place."""
        for scope in self._open:
            if scope not in self._keeping_place:
                del self._open[scope]
                scope.cancel()
                return

    async def _serve_requests(self, stream: trio.abc.Stream, scope: trio.CancelScope) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX_BYTES)
        idle_seconds = REQUEST_TIMEOUT_SECONDS
        while (request := await _wait_for_request(connection, stream, idle_seconds)) is not None:
            self._open[scope] = self._open.pop(scope, None)  # now it is the newest
            idle_seconds = IDLE_TIMEOUT_SECONDS
            path, _, query = request.target.decode("latin-1").partition("?")
            exchange = HttpExchange(request=request, path=path, query=query, connection=connection, stream=stream)
            await self._answer(exchange, scope)
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()

    async def _answer(self, exchange: HttpExchange, scope: trio.CancelScope) -> None:
        route = next((route for route in self.routes if route.path == exchange.path), None)
        methods = READ_METHODS if route is None else route.methods
        is_open = route is not None and route.is_open
        if not is_open and not self.is_known(exchange.request):
            self._quiet.tell("tokens", "a request to %s came without the right token", self.name)
            await exchange.send_page(UNKNOWN_PAGE)
        elif not is_open and (refused := self.refusal(exchange.request)) is not None:
            await exchange.send_page(text_page(HTTPStatus.FORBIDDEN, refused))
        elif exchange.request.method.decode() not in methods:
            page = text_page(HTTPStatus.METHOD_NOT_ALLOWED, f"{' and '.join(methods)} only")
            await exchange.send_page(page)
        elif route is None:
            *paths, last = (route.path for route in self.routes)
            await exchange.send_page(text_page(HTTPStatus.NOT_FOUND, f"there are {', '.join(paths)} and {last}"))
        elif route.keeps_place:
            self._keeping_place.add(scope)
            try:
                await route.answer(exchange)
            finally:
                self._keeping_place.discard(scope)
        else:
            await route.answer(exchange)


async def _wait_for_request(
    connection: h11.Connection, stream: trio.abc.Stream, idle_seconds: float
) -> h11.Request | None:
    """Return the next request, without its body; None at the end of the connection, or after the timeout."""
    request = None
    with trio.CancelScope(deadline=trio.current_time() + idle_seconds) as scope:
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(bytes(await stream.receive_some(RECEIVE_BYTES)))
                scope.deadline = min(scope.deadline, trio.current_time() + REQUEST_TIMEOUT_SECONDS)
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.EndOfMessage):
                return request
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                return None
    return None
