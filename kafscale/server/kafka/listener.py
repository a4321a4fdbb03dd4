"""Listening sockets, and the connections that come in on them."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from functools import partial

import attrs
import trio

from kafscale.api.handling.calls import Peer
from kafscale.concurrency.byte_budget import ByteBudget
from kafscale.config import Address, Limits
from kafscale.descriptors import first_reserved, limit
from kafscale.errors import StartupError
from kafscale.log.partition.chunks import ChunkPool
from kafscale.metrics import Counter, Metrics
from kafscale.server.accepting import accept_all
from kafscale.server.kafka.arrivals import Arrivals
from kafscale.server.kafka.connection import Connection, ConnectionMetrics
from kafscale.server.kafka.dispatch import Dispatcher
from kafscale.server.kafka.transport import SocketTransport, Transport

logger = logging.getLogger(__name__)

IDLE_CHECKS_PER_TIMEOUT = 10
SILENT_SECONDS = 2.0  # from which on a connection that has asked for nothing gives way to a new one
ARRIVING_FRACTION = 0.5  # of the chunk pool, for frames that are coming: the rest is for those that are here
SLOW_CHECK_SECONDS = 1.0


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
    opened_count: Counter = attrs.field(factory=Counter, init=False)
    refused_count: Counter = attrs.field(factory=Counter, init=False)
    connections: set[Connection] = attrs.field(factory=set, init=False)
    arrivals: Arrivals = attrs.field(init=False)
    _silent: dict[Connection, None] = attrs.field(factory=dict, init=False)  # those that may be, oldest first

    def __attrs_post_init__(self) -> None:
        self.arrivals = Arrivals(
            buffer_bytes=self.limits.queued_max_request_bytes,
            pool=ByteBudget(int(self.pool.size_bytes * ARRIVING_FRACTION)),
            timeout_seconds=self.limits.frame_timeout_seconds,
            pool_is_short=lambda: self.pool.waiting_count > 0,
        )

    def register(self, metrics: Metrics) -> None:
        """Show connections to whoever scrapes."""
        metrics.gauge("kafscale_connections", "Open connections.", lambda: len(self.connections))
        metrics.adopt_counter("kafscale_connections_opened_total", "Connections accepted.", self.opened_count)
        metrics.adopt_counter("kafscale_connections_refused_total", "Connections over the limit.", self.refused_count)
        self.metrics.register(metrics)
        self.arrivals.register(metrics)

    async def accept(self, listeners: Sequence[BoundListener], nursery: trio.Nursery) -> None:
        """Accept on all listeners until cancelled; connections run in `nursery`, which outlives this."""
        async with trio.open_nursery() as acceptors:
            for listener in listeners:
                connect = partial(self._connect, listener.name)
                accept = partial(accept_all, name=listener.name, nursery=nursery, quiet=self.metrics.quiet)
                acceptors.start_soon(accept, listener.sockets, connect)
            acceptors.start_soon(self._close_idle)
            acceptors.start_soon(self.arrivals.run)
            acceptors.start_soon(self._close_slow)

    async def _connect(self, listener_name: str, stream: trio.SocketStream) -> None:
        full = self._full(stream)
        if full is not None and not self._make_room():
            self.refused_count.value += 1
            self.metrics.quiet.tell("refused connections", "a connection was refused: %s", full)
            await trio.aclose_forcefully(stream)
            return
        try:
            peer = _peer(listener_name, stream)
        except OSError:  # it has gone already
            await trio.aclose_forcefully(stream)
        else:
            await self.serve(SocketTransport.of(stream), peer)

    def _full(self, stream: trio.SocketStream) -> str | None:
        """Why there should be no more connections; None if there may be."""
        if len(self.connections) >= self.limits.max_connections_count:
            return f"{len(self.connections)} are open, which is --max-connections"
        if stream.socket.fileno() >= first_reserved():
            return (
                f"{len(self.connections)} are open, and of the limit of {limit()} open files the rest is for the log "
                "and the store; raise the limit, such as by `ulimit -n`"
            )
        return None

    def _make_room(self) -> bool:
        """End the oldest connection that has asked for nothing yet; False if there is none, or only new ones."""
        before = trio.current_time() - SILENT_SECONDS
        while self._silent:
            connection = next(iter(self._silent))
            if connection.last_active > before and not connection.has_asked:
                return False
            del self._silent[connection]
            if not connection.has_asked:
                connection.abort()
                return True
        return False

    async def serve(self, transport: Transport, peer: Peer) -> None:
        """Serve one client until it goes away."""
        connection = Connection(
            transport=transport,
            peer=peer,
            dispatcher=self.dispatcher,
            pool=self.pool,
            arrivals=self.arrivals,
            limits=self.limits,
            metrics=self.metrics,
        )
        self.opened_count.value += 1
        self.connections.add(connection)
        self._silent[connection] = None
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)
            self._silent.pop(connection, None)

    async def _close_idle(self) -> None:
        """One timer for all connections: `--connection-idle-timeout`."""
        timeout = self.limits.connection_idle_timeout_seconds
        while True:
            await trio.sleep(timeout / IDLE_CHECKS_PER_TIMEOUT)
            self.metrics.quiet.sum_up()
            before = trio.current_time() - timeout
            for connection in list(self.connections):
                if connection.sending_since < before:
                    connection.abort()  # what it does not take is memory that others wait for
                elif connection.idle and connection.last_active < before:
                    connection.drain()

    async def _close_slow(self) -> None:
        """Close connections that do not take their replies, while somebody waits for the memory that these hold."""
        while True:
            await trio.sleep(SLOW_CHECK_SECONDS)
            if not (self.pool.waiting_count or self.dispatcher.replies_wait_for_memory):
                continue
            now = trio.current_time()
            for connection in list(self.connections):
                if connection.takes_too_long(now):
                    logger.warning(
                        "closing the connection of %s, which takes a reply too slowly while others wait for its memory",
                        connection.peer.address,
                    )
                    connection.abort()

    def drain(self) -> None:
        """Let every connection answer what it has read, and end."""
        for connection in self.connections:
            connection.drain()


def _peer(listener_name: str, stream: trio.SocketStream) -> Peer:
    host, port = stream.socket.getpeername()[:2]
    reached_host, reached_port = stream.socket.getsockname()[:2]
    return Peer(host=host, port=port, listener_name=listener_name, reached_host=reached_host, reached_port=reached_port)
