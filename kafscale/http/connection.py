"""One HTTP/1.1 connection on trio and h11, and one exchange on it at a time.

h11 handles heads and bodies of unknown length. Bodies of known length bypass it: a request's parts go to the socket, a
reply into one buffer. Errors are httpx's. After an error or a cancel, only `close()` may be called.
"""

from __future__ import annotations

import enum
import math
import ssl
from collections.abc import AsyncIterator, Sequence

import attrs
import h11
import httpx
import trio

from kafscale.buffers import Buffer, pieces, size_of
from kafscale.network_errors import why_unreachable

RECEIVE_BYTES = 64 * 1024

# Small parts are joined up to this, and large ones cut: below it calls cost more than bytes, and above it TLS would
# encrypt for too long without a checkpoint.
SEND_BYTES = 256 * 1024

NOTHING = memoryview(b"")


class BufferStream(httpx.AsyncByteStream):
    """A request body of several buffers, sent unjoined. The request must have a Content-Length."""

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self.parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield bytes(part)


@attrs.frozen(kw_only=True)
class Timeouts:
    """Seconds without progress after which an exchange ends; infinity is never."""

    connect: float
    read: float
    write: float
    pool: float

    @classmethod
    def of(cls, request: httpx.Request) -> Timeouts:
        given = request.extensions.get("timeout", {})
        seconds = {name: given.get(name) for name in ("connect", "read", "write", "pool")}
        return cls(**{name: math.inf if value is None else value for name, value in seconds.items()})


class Phase(enum.Enum):
    """Progress of an exchange, which tells whether a request may have had its effect when the connection is lost."""

    SENDING = enum.auto()  # a part of the request at most has left, so it has none
    SENT = enum.auto()  # the server may have acted on the request
    RECEIVING = enum.auto()  # the reply has begun


@attrs.frozen(kw_only=True)
class ReplyHead:
    status: int
    headers: list[tuple[bytes, bytes]]
    content_length_bytes: int | None
    keeps_alive: bool


@attrs.define(eq=False, repr=False)
class HttpConnection:
    """A connection to one origin. `phase` is that of the last exchange; the pool sets `idle_since`."""

    stream: trio.abc.Stream
    socket: trio.socket.SocketType
    phase: Phase = Phase.SENDING
    idle_since: float = 0.0  # trio's clock
    _http: h11.Connection = attrs.field(factory=lambda: h11.Connection(h11.CLIENT))
    _early: memoryview = NOTHING  # what came after the head in one read with it

    @classmethod
    async def open(cls, url: httpx.URL, ssl_context: ssl.SSLContext | None, timeout_seconds: float) -> HttpConnection:
        """Connect, with TLS for https. Raises httpx.ConnectError, httpx.ConnectTimeout."""
        port = url.port or (443 if url.scheme == "https" else 80)
        with trio.move_on_after(timeout_seconds):
            try:
                tcp = await trio.open_tcp_stream(url.host, port)
                if url.scheme != "https":
                    return cls(tcp, tcp.socket)
                assert ssl_context is not None
                return cls(await _start_tls(tcp, ssl_context, url.host), tcp.socket)
            except (OSError, trio.BrokenResourceError) as exc:
                raise httpx.ConnectError(f"can't connect to {url.host}:{port}: {why_unreachable(exc)}") from exc
        raise httpx.ConnectTimeout(f"{url.host}:{port} did not accept a connection in {timeout_seconds} s")

    def is_stale(self) -> bool:
        """Tell whether the server has closed this idle connection, or sent something unasked."""
        return len(self._early) > 0 or self.socket.is_readable()

    def close(self) -> None:
        """Close without TLS's close_notify: HTTP's messages have their own ends."""
        self.socket.close()

    async def exchange(self, request: httpx.Request, timeouts: Timeouts) -> ReplyHead:
        """Send a request and receive the reply's head. Raises httpx.TransportError."""
        self.phase = Phase.SENDING
        # A fresh parser for each exchange (1 µs), because it is not told of the bodies that go past it.
        self._http = h11.Connection(h11.CLIENT)
        with trio.CancelScope() as scope:
            try:
                await self._send(request, scope, timeouts.write)
            except httpx.WriteError as exc:
                return await self._early_reply(request, scope, timeouts.read, lost=exc)
            self.phase = Phase.SENT
            return await self._receive_head(request, scope, timeouts.read)
        raise self._timed_out(timeouts)

    async def receive_body(self, length_bytes: int, timeout_seconds: float) -> Buffer:
        """Receive into one buffer: 64 MiB cost 50 ms of CPU, through h11 130. Raises httpx.TransportError."""
        buffer = bytearray(length_bytes)
        view = memoryview(buffer)
        position = min(length_bytes, len(self._early))
        view[:position] = self._early[:position]
        self._early = self._early[position:]
        if position == length_bytes:
            return buffer  # a small reply, all of which came with its head
        with trio.CancelScope() as scope:
            while position < length_bytes:
                scope.deadline = trio.current_time() + timeout_seconds
                count = await self._receive_into(view[position:])
                if count == 0:
                    raise httpx.RemoteProtocolError(f"the reply was cut off after {position} of {length_bytes} bytes")
                position += count
        if scope.cancelled_caught:
            raise httpx.ReadTimeout(f"nothing was received for {timeout_seconds} s")
        return buffer

    async def receive_piece(self, timeout_seconds: float) -> bytes:
        """Return the next piece of a body of unknown length, empty at its end. Raises httpx.TransportError."""
        with trio.CancelScope() as scope:
            event = await self._receive_event(scope, timeout_seconds)
            if isinstance(event, h11.Data):
                return bytes(event.data)
            self._early = memoryview(self._http.trailing_data[0])
            return b""
        raise httpx.ReadTimeout(f"nothing was received for {timeout_seconds} s")

    def _timed_out(self, timeouts: Timeouts) -> httpx.TimeoutException:
        if self.phase is Phase.SENDING:
            return httpx.WriteTimeout(f"nothing could be sent for {timeouts.write} s")
        return httpx.ReadTimeout(f"nothing was received for {timeouts.read} s")

    async def _send(self, request: httpx.Request, scope: trio.CancelScope, timeout_seconds: float) -> None:
        parts = _body_parts(request)
        try:
            head = self._http.send(
                h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
            )
        except h11.LocalProtocolError as exc:
            raise httpx.LocalProtocolError(str(exc)) from exc
        try:
            for piece in pieces([head, *parts], SEND_BYTES):
                scope.deadline = trio.current_time() + timeout_seconds
                await self.stream.send_all(piece)
        except trio.BrokenResourceError as exc:
            raise httpx.WriteError(str(exc)) from exc

    async def _early_reply(
        self, request: httpx.Request, scope: trio.CancelScope, timeout_seconds: float, *, lost: httpx.WriteError
    ) -> ReplyHead:
        """Return the reply of a server that answered before it read the whole body; else raise `lost`."""
        try:
            head = await self._receive_head(request, scope, timeout_seconds)
        except httpx.TransportError:
            raise lost from None
        return attrs.evolve(head, keeps_alive=False)

    async def _receive_head(self, request: httpx.Request, scope: trio.CancelScope, timeout_seconds: float) -> ReplyHead:
        event = await self._receive_event(scope, timeout_seconds)
        while isinstance(event, h11.InformationalResponse):
            event = await self._receive_event(scope, timeout_seconds)
        if not isinstance(event, h11.Response):
            raise httpx.RemoteProtocolError("the server closed the connection without a reply")
        headers = list(event.headers)
        values = dict(headers)
        content_length_bytes = None
        if request.method == "HEAD" or event.status_code in (204, 304):
            content_length_bytes = 0
        elif b"transfer-encoding" not in values and b"content-length" in values:
            content_length_bytes = int(values[b"content-length"])
        if content_length_bytes is not None:
            self._early = memoryview(self._http.trailing_data[0])
        keeps_alive = (
            event.http_version == b"1.1"
            and b"close" not in values.get(b"connection", b"").lower()
            and (content_length_bytes is not None or b"transfer-encoding" in values)
        )
        return ReplyHead(
            status=event.status_code,
            headers=headers,
            content_length_bytes=content_length_bytes,
            keeps_alive=keeps_alive,
        )

    async def _receive_event(self, scope: trio.CancelScope, timeout_seconds: float) -> h11.Event:
        try:
            while not isinstance(event := self._http.next_event(), h11.Event):
                assert event is h11.NEED_DATA, event
                scope.deadline = trio.current_time() + timeout_seconds
                data = await self._receive_some(RECEIVE_BYTES)
                if data:
                    self.phase = Phase.RECEIVING
                self._http.receive_data(data)
            return event
        except h11.RemoteProtocolError as exc:
            raise httpx.RemoteProtocolError(str(exc)) from exc

    async def _receive_some(self, max_bytes: int) -> bytes:
        try:
            return bytes(await self.stream.receive_some(max_bytes))
        except (OSError, trio.BrokenResourceError) as exc:
            raise httpx.ReadError(str(exc)) from exc

    async def _receive_into(self, view: memoryview) -> int:
        if isinstance(self.stream, trio.SSLStream):
            data = await self._receive_some(min(len(view), RECEIVE_BYTES))
            view[: len(data)] = data
            return len(data)
        try:
            return await self.socket.recv_into(view)
        except OSError as exc:
            raise httpx.ReadError(str(exc)) from exc


async def _start_tls(tcp: trio.SocketStream, context: ssl.SSLContext, host: str) -> trio.abc.Stream:
    tls = trio.SSLStream(tcp, context, server_hostname=host, https_compatible=True)
    try:
        await tls.do_handshake()
    except BaseException:
        tcp.socket.close()
        raise
    return tls


def _body_parts(request: httpx.Request) -> Sequence[Buffer]:
    stream = request.stream
    if isinstance(stream, httpx.ByteStream):
        return list(stream)
    if not isinstance(stream, BufferStream):
        raise TypeError("a request's body is bytes or a BufferStream: it may have to be sent twice")
    declared, actual = request.headers.get("content-length", "0"), size_of(stream.parts)
    if int(declared) != actual:
        raise httpx.LocalProtocolError(f"Content-Length is {declared} but the body has {actual} bytes")
    return stream.parts
