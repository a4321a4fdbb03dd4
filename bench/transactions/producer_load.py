"""Transactional producers as fast as they are answered, in one thread, each with a connection of its own.

What they send and when is in `producer`. A request costs the client a few microseconds, an EndTxn some twenty.
"""

from __future__ import annotations

import math
import select
import socket
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from time import perf_counter, process_time

import attrs

from bench.figures import Figures
from bench.frames import batch_of
from bench.points import Point
from bench.transactions.frames import ProduceTemplate
from bench.transactions.identities import identities
from bench.transactions.producer import Producer, plain_frame
from kafscale.config import Address

RECEIVE_BYTES = 64 << 10
STALL_SECONDS = 60.0
_size = struct.Struct(">i")


@attrs.frozen(kw_only=True)
class TransactionsLoad:
    """Produce for some seconds, or some number of batches, and commit the last transaction.

    point: `in_flight` batches of each producer; the partitions are shared out, of fewer than producers each has one.
    is_transactional: False for idempotent producers, whose batches are of no transaction.
    counts_commits: whether a request is a transaction, whose latency is that of its EndTxn, and not a batch.
    measures_rounds: whether a plain Produce goes before each transaction, to a partition behind those of the point.
    """

    address: Address
    point: Point
    seconds: float
    producers: int = 1
    count: float = math.inf
    is_transactional: bool = True
    commit_every_seconds: float = math.inf
    commit_every_batches: float = math.inf
    counts_commits: bool = False
    measures_rounds: bool = False


def run_transactions(load: TransactionsLoad) -> Figures:
    """Send the load, wait for the last reply. Raises RuntimeError if the broker refuses or stops answering."""
    names = [f"bench-{number}" if load.is_transactional else None for number in range(load.producers)]
    found = identities(load.address, names)
    with ExitStack() as stack:
        connections = []
        for number, (name, producing) in enumerate(zip(names, found, strict=True)):
            producer = Producer(
                templates=[ProduceTemplate.of(load.point, at, name) for at in _partitions(load, number)],
                transactional_id=name,
                producing=producing,
                in_flight=load.point.in_flight,
                commit_every_seconds=load.commit_every_seconds,
                commit_every_batches=load.commit_every_batches,
                count=load.count / load.producers,
                plain_frame=plain_frame(load.point.partitions, batch_of(load.point)) if load.measures_rounds else None,
            )
            connections.append(_Connection.open(load.address, producer))
            stack.enter_context(connections[-1].socket)
        return _run(load, connections)


def _partitions(load: TransactionsLoad, number: int) -> Sequence[int]:
    partitions = load.point.partitions
    return range(number, partitions, load.producers) if number < partitions else [number % partitions]


def _run(load: TransactionsLoad, connections: Sequence[_Connection]) -> Figures:
    by_descriptor = {connection.socket.fileno(): connection for connection in connections}
    with select.epoll() as poll:
        for descriptor in by_descriptor:
            poll.register(descriptor, select.EPOLLIN)
        began, cpu_began = perf_counter(), process_time()
        answered_at, deadline = began, began + load.seconds
        active: Sequence[_Connection] = connections
        while True:
            now = perf_counter()
            for driven in active:
                driven.producer.go_on(now, is_over=now >= deadline)
                driven.send(poll)
            if all(driven.producer.is_idle for driven in active) and all(
                connection.producer.is_idle for connection in connections
            ):
                break
            paused = [connection for connection in connections if connection.producer.resumes_at > now]
            wait_seconds = min((driven.producer.resumes_at - now for driven in paused), default=STALL_SECONDS)
            answering = [by_descriptor[descriptor] for descriptor, _ in poll.poll(wait_seconds)]
            if not answering and now - answered_at > STALL_SECONDS:
                raise RuntimeError(f"the broker has not answered for {STALL_SECONDS} s")
            answered_at = now if answering else answered_at
            for driven in answering:
                driven.receive()
            active = [*answering, *paused]
        return _figures(load, connections, perf_counter() - began, process_time() - cpu_began)


def _figures(
    load: TransactionsLoad, connections: Sequence[_Connection], seconds: float, client_cpu_seconds: float
) -> Figures:
    producers = [connection.producer for connection in connections]
    batch_count = sum(len(producer.batch_latencies) for producer in producers)
    latencies = [producer.end_latencies if load.counts_commits else producer.batch_latencies for producer in producers]
    figures = Figures.of(
        [latency for of_producer in latencies for latency in of_producer],
        seconds=seconds,
        size_bytes=batch_count * producers[0].templates[0].batch_bytes,
        client_cpu_seconds=client_cpu_seconds,
    )
    rounds = [latency for producer in producers for latency in producer.plain_latencies]
    return attrs.evolve(
        figures,
        round_p50_ms=median(rounds) * 1000 if rounds else None,
        concurrent_count=sum(producer.concurrent_count for producer in producers) if load.is_transactional else None,
    )


@attrs.define(eq=False)
class _Connection:
    """A producer and its socket."""

    socket: socket.socket
    producer: Producer
    _unread: bytearray = attrs.field(factory=bytearray, init=False)
    _waits_for_room: bool = attrs.field(default=False, init=False)

    @classmethod
    def open(cls, address: Address, producer: Producer) -> _Connection:
        connection = socket.create_connection((address.host, address.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        return cls(connection, producer)

    def send(self, poll: select.epoll) -> None:
        """Send the outgoing bytes, and let `poll` tell when there is room for the rest."""
        outgoing = self.producer.outgoing
        while outgoing:
            try:
                sent = self.socket.send(outgoing)
            except BlockingIOError:
                break
            del outgoing[:sent]
        if bool(outgoing) != self._waits_for_room:
            self._waits_for_room = bool(outgoing)
            poll.modify(self.socket.fileno(), select.EPOLLIN | (select.EPOLLOUT if outgoing else 0))

    def receive(self) -> None:
        """Take the replies that are there."""
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise RuntimeError("the broker closed the connection")
        now = perf_counter()
        self._unread += data
        position = 0
        with memoryview(self._unread) as view:
            while len(view) - position >= _size.size:
                end = position + _size.size + _size.unpack_from(view, position)[0]
                if end > len(view):
                    break
                with view[position:end] as reply:
                    self.producer.take(reply, now)
                position = end
        del self._unread[:position]
