"""A TCP proxy with faults, for tests of programs whose connections are reset, slow or silent.

    proxy = TcpProxy(Address("127.0.0.1", broker_port))
    await nursery.start(proxy.run)              # clients connect to proxy.port
    proxy.reset()                               # RST to both ends of every connection

It keeps its port while the server is down: a connection that can't be passed on is reset.
"""

from __future__ import annotations

import math
import socket
import struct
from enum import Enum

import attrs
import trio

from kafscale.concurrency.signals import Signal
from kafscale.config import Address


@attrs.define
class Link:
    """One direction of a network link that all connections share."""

    bytes_per_second: float
    _free_at: float = 0.0

    async def carry(self, count: int) -> None:
        """Wait while the bytes pass, after those of earlier senders."""
        if math.isinf(self.bytes_per_second):
            return
        self._free_at = max(self._free_at, trio.current_time()) + count / self.bytes_per_second
        await trio.sleep_until(self._free_at)


CHUNK_BYTES = 16 << 10  # delayed and passed on as one piece
UNDER_WAY_CHUNKS = 256  # per direction of a connection; then the sender waits, as for a full socket buffer
CLOSE_WITH_RST = struct.pack("ii", 1, 0)


class Way(Enum):
    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


@attrs.define(eq=False, repr=False)
class _ProxiedConnection:
    client: trio.SocketStream
    server: trio.SocketStream | None = None
    is_half_open: bool = False

    def reset(self) -> None:
        for stream in (self.client, self.server):
            if stream is not None:
                _reset(stream)


@attrs.define(eq=False, repr=False)
class TcpProxy:
    """Forwards connections to `upstream`, or resets them while it is None. Change it in trio's thread only.

    `delay_seconds` is added each way without limiting the rate; with `refusing`, new connections are reset.
    """

    upstream: Address | None
    port: int = 0
    delay_seconds: float = 0.0
    refusing: bool = False
    accepted_count: int = attrs.field(default=0, init=False)
    _links: dict[Way, Link] = attrs.field(factory=lambda: {way: Link(math.inf) for way in Way}, init=False)
    _connections: set[_ProxiedConnection] = attrs.field(factory=set, init=False)
    _flowing: dict[Way, Signal] = attrs.field(factory=lambda: {way: Signal() for way in Way}, init=False)

    def __attrs_post_init__(self) -> None:
        self.thaw()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def run(self, *, task_status: trio.TaskStatus[TcpProxy] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen on 127.0.0.1 until cancelled; `port` is the real one once this has started."""
        listeners = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started(self)
        await trio.serve_listeners(self._serve, listeners)

    def set_bandwidth(self, bytes_per_second: float) -> None:
        """Limit each direction over all connections; `math.inf` for no limit."""
        for link in self._links.values():
            link.bytes_per_second = bytes_per_second

    def reset(self) -> int:
        """Reset every connection. Returns their number."""
        connections = list(self._connections)
        for connection in connections:
            connection.reset()
        return len(connections)

    def freeze(self, *ways: Way) -> None:
        """Hold back bytes, or those these ways, on all connections."""
        for way in ways or Way:
            self._flowing[way].clear()

    def thaw(self) -> None:
        """Let bytes pass again, those that were held back first."""
        for flowing in self._flowing.values():
            flowing.set()

    def half_open(self) -> int:
        """Close the server's ends only, as if the server had lost power. Returns their number."""
        connections = [found for found in self._connections if found.server is not None and not found.is_half_open]
        for connection in connections:
            assert connection.server is not None
            connection.is_half_open = True
            connection.server.socket.close()
        return len(connections)

    async def _serve(self, client: trio.SocketStream) -> None:
        self.accepted_count += 1
        upstream = self.upstream
        if self.refusing or upstream is None:
            _reset(client)
            return
        connection = _ProxiedConnection(client)
        self._connections.add(connection)
        try:
            connection.server = await trio.open_tcp_stream(upstream.host, upstream.port)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pass, client, connection.server, Way.TO_SERVER)
                nursery.start_soon(self._pass, connection.server, client, Way.TO_CLIENT)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            if connection.is_half_open:
                await _swallow(client)
            else:
                connection.reset()
        finally:
            self._connections.discard(connection)
            for stream in (client, connection.server):
                if stream is not None:
                    stream.socket.close()

    async def _pass(self, source: trio.SocketStream, target: trio.SocketStream, way: Way) -> None:
        """Forward one direction to its end. A separate task delivers, so that a delay doesn't limit the rate."""
        send, receive = trio.open_memory_channel[tuple[float, bytes]](UNDER_WAY_CHUNKS)
        async with trio.open_nursery() as nursery, send:
            nursery.start_soon(self._deliver, receive, target, way)
            while data := await source.receive_some(CHUNK_BYTES):
                await send.send((trio.current_time() + self.delay_seconds, bytes(data)))

    async def _deliver(
        self, chunks: trio.MemoryReceiveChannel[tuple[float, bytes]], target: trio.SocketStream, way: Way
    ) -> None:
        flowing = self._flowing[way]
        async for due, data in chunks:
            await trio.sleep_until(due)
            await self._links[way].carry(len(data))
            while not flowing.is_set():
                await flowing.wait()
            await target.send_all(data)
        while not flowing.is_set():
            await flowing.wait()
        await target.send_eof()


def _reset(stream: trio.SocketStream) -> None:
    if stream.socket.fileno() >= 0:
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, CLOSE_WITH_RST)
        stream.socket.close()


async def _swallow(client: trio.SocketStream) -> None:
    """Discard the client's bytes until it closes or is reset."""
    try:
        while await client.receive_some(CHUNK_BYTES):
            pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
