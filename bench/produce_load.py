"""Sending Produce requests as fast as they are answered, or at a fixed rate, at as little cost as possible.

One thread, no task: what is due goes out by one `send` from a ring of encoded requests, replies are read many at a time
and compared by `struct`. A request costs the client about a microsecond and a half.

At a fixed rate a latency counts from the moment when the request was due, also if the broker was not ready to take it.
"""

from __future__ import annotations

import math
import select
import socket
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from time import perf_counter, process_time

import attrs

from bench.figures import Figures
from bench.frames import ProduceRing, explain_produce_reply, produce_reply_layout
from bench.points import Point
from bench.secured.sasl_ssl import SaslSsl
from bench.secured.sockets import connect
from kafscale.config import Address

RECEIVE_BYTES = 64 << 10
STALL_SECONDS = 60


@attrs.frozen
class Share:
    """The work of one connection: its broker, with which partitions."""

    address: Address
    partitions: Sequence[int]


@attrs.frozen(kw_only=True)
class ProduceLoad:
    """Produce for some seconds, or some number of requests, whichever ends first.

    Each connection has a share of the partitions of its own, and `point.in_flight` requests under way.
    requests_per_second: of all connections together. security: None for a broker without TLS. shares: what each
    connection does where there are several brokers, in place of `address` and `connections`.
    """

    address: Address
    point: Point
    seconds: float
    count: float = math.inf
    connections: int = 1
    requests_per_second: float = math.inf
    security: SaslSsl | None = None
    shares: Sequence[Share] = ()

    def all_shares(self) -> Sequence[Share]:
        """Return what each connection does."""
        count = self.connections
        return self.shares or [
            Share(self.address, range(number, self.point.partitions, count)) for number in range(count)
        ]


def run_produce(load: ProduceLoad) -> Figures:
    """Send the load, wait for the last reply. Raises RuntimeError if the broker refuses or stops answering."""
    with ExitStack() as stack:
        shares = load.all_shares()
        connections = [_Connection.open(load, share, len(shares)) for share in shares]
        for connection in connections:
            stack.enter_context(connection.socket)
        return _run(load, connections)


def _run(load: ProduceLoad, connections: Sequence[_Connection]) -> Figures:
    by_descriptor = {connection.socket.fileno(): connection for connection in connections}
    poll = select.epoll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    began, cpu_began = perf_counter(), process_time()
    deadline = began + load.seconds
    active: Sequence[_Connection] = connections
    while True:
        now = perf_counter()
        for producer in active:
            if now < deadline:
                producer.begin(now, began)
            producer.send(poll)
        if (now >= deadline or load.count < math.inf) and all(
            connection.is_over(now >= deadline) for connection in connections
        ):
            break
        pause_seconds = min(max(0.0, min(connection.next_due_at for connection in connections) - now), STALL_SECONDS)
        select.select([poll], [], [], pause_seconds)  # in microseconds; epoll would wait for whole milliseconds
        answering = [by_descriptor[descriptor] for descriptor, _ in poll.poll(0)]
        if not answering and pause_seconds == STALL_SECONDS:
            raise RuntimeError(f"the broker has not answered for {STALL_SECONDS} s")
        for producer in answering:
            producer.receive()
        active = answering if load.requests_per_second == math.inf else connections
    return Figures.of(
        [latency for connection in connections for latency in connection.latencies],
        seconds=perf_counter() - began,
        size_bytes=sum(connection.answered_count * connection.ring.batch_bytes for connection in connections),
        client_cpu_seconds=process_time() - cpu_began,
    )


@attrs.define(eq=False, kw_only=True)
class _Connection:
    ring: ProduceRing
    socket: socket.socket
    in_flight: int
    count: float
    period_seconds: float  # between two requests; 0 for as fast as they are answered
    latencies: array[float] = attrs.field(factory=lambda: array("d"), init=False)
    begun_at: list[float] = attrs.field(init=False)  # by place in the ring
    begun_count: int = 0  # requests that are sent, or would be if the socket had room
    sent_bytes: int = 0
    answered_count: int = 0
    next_due_at: float = math.inf  # infinite while only a reply allows another one
    waits_for_room: bool = False
    unread: bytearray = attrs.field(factory=bytearray, init=False)

    def __attrs_post_init__(self) -> None:
        self.begun_at = [0.0] * self.ring.count

    @classmethod
    def open(cls, load: ProduceLoad, share: Share, shares_count: int) -> _Connection:
        return cls(
            ring=ProduceRing.of(load.point, share.partitions),
            socket=connect(share.address, load.security),
            in_flight=load.point.in_flight,
            count=load.count / shares_count,
            period_seconds=shares_count / load.requests_per_second,
        )

    def is_over(self, time_is_up: bool) -> bool:
        """Tell whether there is nothing more to send, and no reply to come."""
        return self.answered_count >= (self.begun_count if time_is_up else self.count)

    def begin(self, now: float, began: float) -> None:
        """Let as many requests be due as may be in flight, and as the rate allows."""
        may_begin = min(self.answered_count + self.in_flight, self.count)
        if not self.period_seconds:
            while self.begun_count < may_begin:
                self._begin_at(now)
            return
        due_count = int((now - began) / self.period_seconds) + 1
        while self.begun_count < min(due_count, may_begin):
            self._begin_at(began + self.begun_count * self.period_seconds)
        waits_for_reply = self.begun_count < due_count
        self.next_due_at = math.inf if waits_for_reply else began + self.begun_count * self.period_seconds

    def _begin_at(self, moment: float) -> None:
        self.begun_at[self.begun_count % self.ring.count] = moment
        self.begun_count += 1

    def send(self, poll: select.epoll) -> None:
        """Send the due bytes, and let `poll` tell when there is room for the rest."""
        due_bytes = self.begun_count * self.ring.frame_bytes - self.sent_bytes
        had_room = True
        while due_bytes and had_room:
            start = self.sent_bytes % len(self.ring.frames)
            try:
                sent = self.socket.send(self.ring.frames[start : start + due_bytes])
            except BlockingIOError:
                had_room = False
            else:
                self.sent_bytes += sent
                due_bytes -= sent
        if had_room == self.waits_for_room:
            self.waits_for_room = not had_room
            poll.modify(self.socket.fileno(), select.EPOLLIN | (select.EPOLLOUT if self.waits_for_room else 0))

    def receive(self) -> None:
        """Take the replies that are there."""
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise RuntimeError("the broker closed the connection")
        now = perf_counter()
        self.unread += data
        whole = len(self.unread) // _layout.size * _layout.size
        with memoryview(self.unread) as view:
            for number, (size, correlation_id, error_code) in enumerate(_layout.iter_unpack(view[:whole])):
                place = self.answered_count % self.ring.count
                if error_code or correlation_id != place or size != _layout.size - 4:
                    reply = view[number * _layout.size :]
                    raise RuntimeError(f"the broker refused a batch: {explain_produce_reply(reply[: size + 4])}")
                self.latencies.append(now - self.begun_at[place])
                self.answered_count += 1
        del self.unread[:whole]


_layout = produce_reply_layout()
