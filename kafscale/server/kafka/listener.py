"""Listening sockets, and the connections that come in on them."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from functools import partial

import attrs
import trio

from kafscale.api.calls import Peer
from kafscale.concurrency.byte_budget import ByteBudget
from kafscale.config import Address, Limits
from kafscale.errors import StartupError
from kafscale.log.partition.chunks import ChunkPool
from kafscale.metrics import Counter
from kafscale.server.dispatch import Dispatcher
from kafscale.server.kafka.connection import OVERFLOW_MAX_BYTES, Connection, ConnectionMetrics
from kafscale.server.kafka.transport import SocketTransport, Transport

logger = logging.getLogger(__name__)

IDLE_CHECKS_PER_TIMEOUT = 10


@attrs.frozen(eq=False)
class BoundListener:
    """A listener with its sockets open; `port` is the real one."""

    name: str
    host: str
    port: int
    sockets: Sequence[trio.SocketListener]


async def bind(name: str, address: Address, *, option: str) -> BoundListener:
    """Open the sockets. `option` names the setting in the error. Raises StartupError."""
    try:
        sockets = await trio.open_tcp_listeners(address.port, host=address.host)
    except OSError as exc:
        raise StartupError(f"{option} {address}: {_why(exc)}") from exc
    return BoundListener(name, address.host, sockets[0].socket.getsockname()[1], sockets)


def _why(exc: OSError) -> str:
    number = exc.errno if exc.errno is not None else getattr(exc.__cause__, "errno", None)
    causes = [exc, *getattr(exc.__cause__, "exceptions", ())]
    if any(getattr(cause, "errno", number) == errno.EADDRINUSE for cause in causes):
        return "another program listens there; stop it, or choose another port (0 picks a free one)"
    if any(getattr(cause, "errno", number) == errno.EACCES for cause in causes):
        return "not allowed to listen there; choose a port above 1023"
    return f"can't listen there: {exc}; choose an address of this machine"


@attrs.define(eq=False, kw_only=True)
class Acceptor:
    """Makes a Connection of whatever comes in, in the nursery that owns them, up to a limit."""

    dispatcher: Dispatcher
    pool: ChunkPool
    limits: Limits
    metrics: ConnectionMetrics
    opened_count: Counter = attrs.field(factory=Counter)
    refused_count: Counter = attrs.field(factory=Counter)
    connections: set[Connection] = attrs.field(factory=set, init=False)
    _overflow: ByteBudget = attrs.field(factory=lambda: ByteBudget(OVERFLOW_MAX_BYTES), init=False)

    async def accept(self, listeners: Sequence[BoundListener], nursery: trio.Nursery) -> None:
        """Accept on all listeners until cancelled; connections run in `nursery`, which outlives this."""
        async with trio.open_nursery() as acceptors:
            for listener in listeners:
                serve = partial(trio.serve_listeners, handler_nursery=nursery)
                acceptors.start_soon(serve, partial(self._connect, listener.name), list(listener.sockets))
            acceptors.start_soon(self._close_idle)

    async def _connect(self, listener_name: str, stream: trio.SocketStream) -> None:
        if len(self.connections) >= self.limits.max_connections_count:
            self.refused_count.value += 1
            await trio.aclose_forcefully(stream)
            return
        try:
            peer = _peer(listener_name, stream)
        except OSError:  # it has gone already
            await trio.aclose_forcefully(stream)
        else:
            await self.serve(SocketTransport.of(stream), peer)

    async def serve(self, transport: Transport, peer: Peer) -> None:
        """Serve one client until it goes away."""
        connection = Connection(
            transport=transport,
            peer=peer,
            dispatcher=self.dispatcher,
            pool=self.pool,
            overflow=self._overflow,
            limits=self.limits,
            metrics=self.metrics,
        )
        self.opened_count.value += 1
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)

    async def _close_idle(self) -> None:
        """One timer for all connections: `--connection-idle-timeout`."""
        timeout = self.limits.connection_idle_timeout_seconds
        while True:
            await trio.sleep(timeout / IDLE_CHECKS_PER_TIMEOUT)
            before = trio.current_time() - timeout
            for connection in list(self.connections):
                if connection.sending_since < before:
                    connection.abort()  # what it does not take is memory that others wait for
                elif connection.idle and connection.last_active < before:
                    connection.drain()

    def drain(self) -> None:
        """Let every connection answer what it has read, and end."""
        for connection in self.connections:
            connection.drain()


def _peer(listener_name: str, stream: trio.SocketStream) -> Peer:
    host, port = stream.socket.getpeername()[:2]
    reached_host, reached_port = stream.socket.getsockname()[:2]
    return Peer(host=host, port=port, listener_name=listener_name, reached_host=reached_host, reached_port=reached_port)
