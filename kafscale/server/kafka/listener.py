"""Accepts connections on listening sockets."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import trio

from kafscale.api.handling.calls import ListedApi, Peer
from kafscale.api.handling.services import Services
from kafscale.api.table import APIS
from kafscale.concurrency.byte_budget import ByteBudget
from kafscale.config import Limits
from kafscale.descriptors import first_reserved, limit
from kafscale.log.partition.chunks import ChunkPool
from kafscale.metrics import Counter, Metrics
from kafscale.server.accepting import accept_all
from kafscale.server.kafka.arrivals import Arrivals
from kafscale.server.kafka.binding import BoundListener, ListenerTls
from kafscale.server.kafka.connection import ConnectionMetrics, ServedConnection
from kafscale.server.kafka.dispatch import Dispatcher
from kafscale.server.kafka.ip_limits import HELD_MAX_COUNT, IpLimits
from kafscale.server.kafka.tls_transport import TlsTransport
from kafscale.server.kafka.transport import SocketTransport, Transport, take_socket
from kafscale.server.tls.handshakes import HandshakeFailure, Handshakes

MakeDispatcher = Callable[[Services, Sequence[ListedApi]], Dispatcher]

logger = logging.getLogger(__name__)

IDLE_CHECKS_PER_TIMEOUT = 10
SILENT_SECONDS = 2.0  # from which on a connection that has asked for nothing gives way to a new one
ARRIVING_FRACTION = 0.5  # of the chunk pool, for frames that are coming: the rest is for those that are here
SLOW_CHECK_SECONDS = 1.0


@attrs.define(eq=False, kw_only=True, repr=False)
class Acceptor:
    """Serves connections in the nursery that owns them, up to a limit."""

    dispatcher: Dispatcher
    pool: ChunkPool
    limits: Limits
    metrics: ConnectionMetrics
    tls: ListenerTls | None = None
    opened_count: Counter = attrs.field(factory=Counter, init=False)
    refused_count: Counter = attrs.field(factory=Counter, init=False)
    connections: set[ServedConnection] = attrs.field(factory=set, init=False)
    arrivals: Arrivals = attrs.field(init=False)
    handshakes: Handshakes = attrs.field(init=False)
    ip_limits: IpLimits = attrs.field(init=False)
    _held_count: int = attrs.field(default=0, init=False)  # that were made too fast, and wait for their end
    _silent: dict[ServedConnection, None] = attrs.field(factory=dict, init=False)  # those that may be, oldest first

    def __attrs_post_init__(self) -> None:
        self.arrivals = Arrivals(
            buffer_bytes=self.limits.queued_max_request_bytes,
            pool=ByteBudget(int(self.pool.size_bytes * ARRIVING_FRACTION)),
            timeout_seconds=self.limits.frame_timeout_seconds,
            pool_is_short=lambda: self.pool.waiting_count > 0,
        )
        self.handshakes = Handshakes(
            max_count=self.limits.max_ssl_handshakes_count,
            timeout_seconds=self.limits.ssl_handshake_timeout_seconds,
            quiet=self.metrics.quiet,
        )
        services = self.dispatcher.services
        self.ip_limits = IpLimits(
            limits=self.limits,
            quotas=services.client_quotas,
            throttled_seconds=services.quotas.throttled_seconds.of("connection"),
        )

    def register(self, metrics: Metrics) -> None:
        metrics.gauge("kafscale_connections", "Open connections.", lambda: len(self.connections))
        metrics.adopt_counter("kafscale_connections_opened_total", "Connections accepted.", self.opened_count)
        metrics.adopt_counter(
            "kafscale_connections_refused_total",
            "Connections refused or closed because of a limit.",
            self.refused_count,
        )
        self.metrics.register(metrics)
        self.arrivals.register(metrics)
        self.handshakes.register(metrics)

    async def accept(self, listeners: Sequence[BoundListener], nursery: trio.Nursery) -> None:
        """Accept on all listeners until cancelled; connections run in `nursery`, which outlives this."""
        async with trio.open_nursery() as acceptors:
            for listener in listeners:
                connect = partial(self._connect, listener)
                accept = partial(accept_all, name=listener.name, nursery=nursery, quiet=self.metrics.quiet)
                acceptors.start_soon(accept, listener.sockets, connect)
            acceptors.start_soon(self._close_idle)
            acceptors.start_soon(self.arrivals.run)
            acceptors.start_soon(self._close_slow)

    async def _connect(self, listener: BoundListener, stream: trio.SocketStream) -> None:
        try:
            peer = _peer(listener, stream)
        except OSError:  # it has gone already
            await trio.aclose_forcefully(stream)
            return
        hold_seconds = self.ip_limits.hold_seconds(peer.host)
        if hold_seconds:
            await self._hold(stream, hold_seconds)
        elif not self.ip_limits.enter(peer.host):
            await self._refuse(stream, f"{peer.host} has as many as it may have by --max-connections-per-ip")
        else:
            try:
                await self._let_in(listener, stream, peer)
            finally:
                self.ip_limits.leave(peer.host)

    async def _let_in(self, listener: BoundListener, stream: trio.SocketStream, peer: Peer) -> None:
        full = self._full(stream)
        if full is not None and not self._make_room():
            await self._refuse(stream, full)
        elif listener.protocol.uses_tls:
            transport = await self._secure(take_socket(stream), peer)
            if transport is not None:
                await self.serve(transport, peer)
        else:
            await self.serve(SocketTransport.of(stream), peer)

    async def _refuse(self, stream: trio.SocketStream, why: str) -> None:
        self.refused_count.value += 1
        self.metrics.quiet.tell("refused connections", "a connection was refused: %s", why)
        await trio.aclose_forcefully(stream)

    async def _hold(self, stream: trio.SocketStream, seconds: float) -> None:
        if self._held_count < HELD_MAX_COUNT and stream.socket.fileno() < first_reserved():
            self._held_count += 1
            try:
                with trio.move_on_after(seconds):
                    await self.dispatcher.services.draining.wait()
            finally:
                self._held_count -= 1
        await trio.aclose_forcefully(stream)

    async def _secure(self, taken: socket.socket, peer: Peer) -> TlsTransport | None:
        """Do the handshake, and set the peer's principal by its certificate; None if it fails."""
        assert self.tls is not None
        secured = await self.handshakes.perform(taken, self.tls.files.context(peer.security_protocol), peer.address)
        if secured is None:
            return None
        transport = TlsTransport(secured)
        try:
            peer.principal = self.tls.principal_of(secured.tls)
        except ValueError as exc:
            self.handshakes.fail(HandshakeFailure.CLIENT_CERTIFICATE, peer.address, str(exc))
            await transport.aclose()
            return None
        return transport

    def use_limits(self, limits: Limits) -> None:
        self.limits = limits
        self.ip_limits.use(limits)

    def _full(self, stream: trio.SocketStream) -> str | None:
        """Return why no further connection is possible, or None."""
        open_count = len(self.connections) + self.handshakes.count
        if open_count >= self.limits.max_connections_count:
            return f"{open_count} are open, which is --max-connections"
        if stream.socket.fileno() >= first_reserved():
            return (
                f"{open_count} are open, and of the limit of {limit()} open files the rest is for the log "
                "and the store; raise the limit, such as by `ulimit -n`"
            )
        return None

    def _make_room(self) -> bool:
        """End the oldest connection without a request; False if all are new."""
        before = trio.current_time() - SILENT_SECONDS
        if self.handshakes.give_way(before):
            return True
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
        if peer.security_protocol.uses_sasl:
            peer.sasl = self.dispatcher.services.authenticator.open_session()
        connection = ServedConnection(
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
        """Close idle connections, with one timer for all."""
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
        """Close connections that don't read their replies, while tasks wait for the memory of these."""
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
        self.handshakes.drain()
        for connection in self.connections:
            connection.drain()


def _peer(listener: BoundListener, stream: trio.SocketStream) -> Peer:
    host, port = stream.socket.getpeername()[:2]
    reached_host, reached_port = stream.socket.getsockname()[:2]
    return Peer(
        host=host,
        port=port,
        listener_name=listener.name,
        reached_host=reached_host,
        reached_port=reached_port,
        security_protocol=listener.protocol,
    )


def open_acceptor(services: Services, make_dispatcher: MakeDispatcher, tls: ListenerTls | None) -> Acceptor:
    """Make the acceptor for all APIs, which follows the limits."""
    acceptor = Acceptor(
        dispatcher=make_dispatcher(services, APIS),
        pool=services.log.pool,
        limits=services.settings.limits,
        metrics=ConnectionMetrics(),
        tls=tls,
    )
    acceptor.register(services.metrics)
    configs = services.broker_configs
    configs.follow(lambda: acceptor.use_limits(configs.settings.limits))
    return acceptor
