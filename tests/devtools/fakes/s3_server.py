"""A stand-in S3 server: strict, observable and faulty on demand.

It keeps objects in memory, checks signatures and checksums (`s3_service`), and has latency, link rates, faults and
counters.
"""

from __future__ import annotations

import contextlib
import email.utils
import math
import ssl
import tempfile
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import h11
import trio

from kafscale.store.s3.sigv4 import S3Credentials
from kafscale.testing.certificates import CertificateFiles, make_authority
from kafscale.testing.tcp_proxy import Link
from tests.devtools.fakes.s3_service import Body, S3Answer, S3Call, S3Service

RECEIVE_BYTES = 256 * 1024

CREDENTIALS = S3Credentials(access_key_id="stand-in", secret_access_key="stand-in-secret")


@attrs.frozen
class ErrorReply:
    """Refuse a call, without effect."""

    status: int = 503
    code: str = "SlowDown"


@attrs.frozen
class Drop:
    """Close the connection instead of answering, before the call has its effect or after."""

    after_effect: bool


@attrs.frozen
class Truncate:
    """Perform the call, answer with the full length, and close after `body_bytes` of the body."""

    body_bytes: int


@attrs.frozen
class Hang:
    """Never answer; the connection stays open until the client closes it."""

    after_effect: bool = False


Fault = ErrorReply | Drop | Truncate | Hang


@attrs.define(kw_only=True)
class S3Counters:
    """Counters of the server. Bytes are those of bodies."""

    requests: Counter[str] = attrs.field(factory=Counter)
    in_flight: int = 0
    max_in_flight: int = 0
    connections_opened: int = 0
    connections_open: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0


@attrs.define(kw_only=True)
class S3Server:
    """The server. Its attributes may be changed while it runs.

    `latency_seconds` delays every call, and `latency_by_operation` those of an operation, such as PutObject.
    `intercept` may return a fault for a call.
    """

    service: S3Service = attrs.field(
        factory=lambda: S3Service(credentials={CREDENTIALS.access_key_id: CREDENTIALS}),
    )
    latency_seconds: float = 0.0
    latency_by_operation: dict[str, float] = attrs.field(factory=dict)
    upstream: Link = attrs.field(factory=lambda: Link(math.inf))
    downstream: Link = attrs.field(factory=lambda: Link(math.inf))
    intercept: Callable[[S3Call], Fault | None] = lambda call: None
    counters: S3Counters = attrs.field(factory=S3Counters)
    port: int = 0
    certificate: CertificateFiles | None = None
    _faults: deque[tuple[str, Fault]] = attrs.field(factory=deque)
    _ssl_context: ssl.SSLContext | None = None
    _listeners: list[trio.SocketListener] = attrs.field(factory=list)
    _connections: set[_ServerConnection] = attrs.field(factory=set)

    @property
    def endpoint(self) -> str:
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{self.port}{quote(self.service.base_path)}"

    def inject(self, fault: Fault, *, operation: str = "", count: int = 1) -> None:
        self._faults.extend([(operation, fault)] * count)

    def clear_faults(self) -> None:
        self._faults.clear()

    def limit_link(self, bytes_per_second: float) -> None:
        self.upstream, self.downstream = Link(bytes_per_second), Link(bytes_per_second)

    def close_idle_connections(self) -> int:
        """Close connections that wait for a request. Returns their number."""
        idle = [connection for connection in self._connections if connection.is_idle]
        for connection in idle:
            connection.close()
        return len(idle)

    async def listen(self) -> None:
        """Listen on 127.0.0.1, on `port` or a free one."""
        if self.certificate is not None:
            self._ssl_context = self.certificate.server_context()
        self._listeners = list(await trio.open_tcp_listeners(self.port, host="127.0.0.1", backlog=1024))
        self.port = self._listeners[0].socket.getsockname()[1]

    async def run(self) -> None:
        await trio.serve_listeners(self._serve, self._listeners)

    async def _serve(self, tcp: trio.SocketStream) -> None:
        stream: trio.abc.Stream = tcp
        if self._ssl_context is not None:
            stream = trio.SSLStream(tcp, self._ssl_context, server_side=True, https_compatible=True)
        connection = _ServerConnection(self, tcp, stream)
        self.counters.connections_opened += 1
        self.counters.connections_open += 1
        self._connections.add(connection)
        try:
            await connection.serve()
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError, ConnectionLost):
            pass  # the client closed the connection, or a fault did
        finally:
            connection.close()
            self._connections.remove(connection)
            self.counters.connections_open -= 1

    def _next_fault(self, call: S3Call) -> Fault | None:
        fault = self.intercept(call)
        if fault is not None:
            return fault
        for entry in self._faults:
            if entry[0] in ("", call.operation):
                self._faults.remove(entry)
                return entry[1]
        return None


class ConnectionLost(Exception):
    """The client closed the connection, or a fault closes it."""


@attrs.define(eq=False, repr=False)
class _ServerConnection:
    server: S3Server
    tcp: trio.SocketStream
    stream: trio.abc.Stream
    is_idle: bool = True

    def close(self) -> None:
        self.tcp.socket.close()

    async def serve(self) -> None:
        while True:
            http = h11.Connection(h11.SERVER)
            self.is_idle = True
            request = await self._receive_request(http)
            self.is_idle = False
            headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
            if http.they_are_waiting_for_100_continue:
                await self.stream.send_all(http.send(h11.InformationalResponse(status_code=100, headers=[])))
            body = await self._receive_body(http, int(headers.get("content-length", "0")))
            service = self.server.service
            call = S3Call.of(
                request.method.decode(),
                request.target.decode(),
                headers,
                body=body,
                domain=service.domain,
                base_path=service.base_path,
            )
            await self._answer(http, call)
            if headers.get("connection", "").lower() == "close":
                return

    async def _answer(self, http: h11.Connection, call: S3Call) -> None:
        counters = self.server.counters
        counters.requests[call.operation] += 1
        counters.in_flight += 1
        counters.max_in_flight = max(counters.max_in_flight, counters.in_flight)
        try:
            fault = self.server._next_fault(call)
            answer = await self._perform(call, fault)
            body_bytes = fault.body_bytes if isinstance(fault, Truncate) else len(answer.body)
            await self._send(http, call, answer, body_bytes=body_bytes)
        finally:
            counters.in_flight -= 1
        if isinstance(fault, Truncate):
            raise ConnectionLost

    async def _perform(self, call: S3Call, fault: Fault | None) -> S3Answer:
        latency = self.server.latency_seconds + self.server.latency_by_operation.get(call.operation, 0.0)
        if latency:
            await trio.sleep(latency)
        if isinstance(fault, ErrorReply):
            return S3Answer.error(fault.status, fault.code, "a fault was injected")
        if isinstance(fault, Drop | Hang) and not fault.after_effect:
            await self._vanish(fault)
        answer = self.server.service.handle(call)
        if isinstance(fault, Drop | Hang):
            await self._vanish(fault)
        return answer

    async def _vanish(self, fault: Drop | Hang) -> None:
        if isinstance(fault, Hang) and await self.stream.receive_some():
            raise AssertionError("the client sent more before it had its reply")
        raise ConnectionLost

    async def _receive_request(self, http: h11.Connection) -> h11.Request:
        while True:
            event = http.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                raise ConnectionLost
            data = await self.stream.receive_some(RECEIVE_BYTES)
            self.is_idle = False
            http.receive_data(bytes(data))

    async def _receive_body(self, http: h11.Connection, length_bytes: int) -> Body:
        body = bytearray(length_bytes)
        early, _ = http.trailing_data
        body[: len(early)] = early
        position = len(early)
        await self.server.upstream.carry(position)
        while position < length_bytes:
            data = await self.stream.receive_some(min(RECEIVE_BYTES, length_bytes - position))
            if not data:
                raise ConnectionLost
            body[position : position + len(data)] = data
            position += len(data)
            await self.server.upstream.carry(len(data))
        self.server.counters.bytes_received += length_bytes
        return body

    async def _send(self, http: h11.Connection, call: S3Call, answer: S3Answer, *, body_bytes: int) -> None:
        headers = {"date": email.utils.formatdate(self.server.service.clock(), usegmt=True), **answer.headers}
        headers["server"] = "kafscale-stand-in"
        if answer.status != 204:
            headers["content-length"] = str(len(answer.body))
        fields: list[Any] = list(headers.items())
        head = http.send(h11.Response(status_code=answer.status, headers=fields))
        body = memoryview(answer.body)[:body_bytes] if call.method != "HEAD" else memoryview(b"")
        await self.stream.send_all(head + body[:RECEIVE_BYTES])
        await self.server.downstream.carry(min(len(body), RECEIVE_BYTES))
        for start in range(RECEIVE_BYTES, len(body), RECEIVE_BYTES):
            piece = body[start : start + RECEIVE_BYTES]
            await self.stream.send_all(piece)
            await self.server.downstream.carry(len(piece))
        self.server.counters.bytes_sent += len(body)


@contextlib.asynccontextmanager
async def open_s3_server(server: S3Server | None = None, *, tls: bool = False) -> AsyncIterator[S3Server]:
    server = server or S3Server()
    with tempfile.TemporaryDirectory() as directory:
        if tls:
            server.certificate = make_authority(Path(directory)).issue("server")
        async with trio.open_nursery() as nursery:
            await server.listen()
            nursery.start_soon(server.run)
            yield server
            nursery.cancel_scope.cancel()


@contextlib.contextmanager
def s3_server_in_thread(server: S3Server | None = None, *, tls: bool = False) -> Iterator[S3Server]:
    server = server or S3Server()
    started, token_and_scope = threading.Event(), []

    async def serve() -> None:
        async with open_s3_server(server, tls=tls):
            with trio.CancelScope() as scope:
                token_and_scope.append((trio.lowlevel.current_trio_token(), scope))
                started.set()
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(serve,), name="s3-server", daemon=True)
    thread.start()
    try:
        if not started.wait(10):
            raise RuntimeError("the S3 server did not start")
        yield server
    finally:
        for token, scope in token_and_scope:
            token.run_sync_soon(scope.cancel)
        thread.join(10)
