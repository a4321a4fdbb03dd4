"""Sending Produce requests as fast as they are answered, at as little cost as possible.

One connection, one thread, no task: what is due goes out by one `send` from a ring of encoded requests, replies are
read many at a time and compared by `struct`. A request costs the client about a microsecond and a half.
"""

from __future__ import annotations

import select
import socket
from array import array
from time import perf_counter, process_time

import attrs

from bench.figures import Figures
from bench.frames import ProduceRing, explain_produce_reply, produce_reply_layout
from bench.points import Point
from kafscale.config import Address

RECEIVE_BYTES = 64 << 10
STALL_SECONDS = 60


@attrs.frozen(kw_only=True)
class ProduceLoad:
    """Produce for some seconds, or some number of requests, whichever ends first."""

    address: Address
    point: Point
    seconds: float
    count: float = float("inf")


def run_produce(load: ProduceLoad) -> Figures:
    """Send the load, wait for the last reply. Raises RuntimeError if the broker refuses or stops answering."""
    ring = ProduceRing.of(load.point)
    with socket.create_connection((load.address.host, load.address.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        return _Run(load=load, ring=ring, connection=connection).run()


@attrs.define(eq=False, kw_only=True)
class _Run:
    load: ProduceLoad
    ring: ProduceRing
    connection: socket.socket
    begun_at: list[float] = attrs.field(init=False)  # by place in the ring
    latencies: array[float] = attrs.field(factory=lambda: array("d"), init=False)
    begun_count: int = 0  # requests that are sent, or would be if the socket had room
    sent_bytes: int = 0
    answered_count: int = 0
    unread: bytearray = attrs.field(factory=bytearray, init=False)

    def __attrs_post_init__(self) -> None:
        self.begun_at = [0.0] * self.ring.count

    def run(self) -> Figures:
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        began, cpu_began = perf_counter(), process_time()
        deadline = began + self.load.seconds
        waits_to_send = False
        while True:
            now = perf_counter()
            if now < deadline:
                self._begin(now)
            elif self.answered_count == self.begun_count:
                break
            if self._send() != waits_to_send:
                waits_to_send = not waits_to_send
                poll.modify(self.connection, select.POLLIN | (select.POLLOUT if waits_to_send else 0))
            if not poll.poll(STALL_SECONDS * 1000):
                raise RuntimeError(f"the broker has not answered for {STALL_SECONDS} s")
            self._receive()
            if self.answered_count >= self.load.count:
                break
        return Figures.of(
            self.latencies,
            seconds=perf_counter() - began,
            size_bytes=self.answered_count * self.ring.batch_bytes,
            client_cpu_seconds=process_time() - cpu_began,
        )

    def _begin(self, now: float) -> None:
        """Let as many requests be due as may be in flight."""
        may_begin = min(self.answered_count + self.load.point.in_flight, self.load.count)
        while self.begun_count < may_begin:
            self.begun_at[self.begun_count % self.ring.count] = now
            self.begun_count += 1

    def _send(self) -> bool:
        """Send what is due; whether the socket had no room for all of it."""
        due_bytes = self.begun_count * self.ring.frame_bytes - self.sent_bytes
        while due_bytes:
            start = self.sent_bytes % len(self.ring.frames)
            try:
                sent = self.connection.send(self.ring.frames[start : start + due_bytes])
            except BlockingIOError:
                return True
            self.sent_bytes += sent
            due_bytes -= sent
        return False

    def _receive(self) -> None:
        try:
            data = self.connection.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise RuntimeError("the broker closed the connection")
        now = perf_counter()
        self.unread += data
        whole = len(self.unread) // _layout.size * _layout.size
        with memoryview(self.unread) as view:
            for size, correlation_id, error_code in _layout.iter_unpack(view[:whole]):
                place = self.answered_count % self.ring.count
                if error_code or correlation_id != place or size != _layout.size - 4:
                    raise RuntimeError(f"the broker refused a batch: {explain_produce_reply(view[: size + 4])}")
                self.latencies.append(now - self.begun_at[place])
                self.answered_count += 1
        del self.unread[:whole]


_layout = produce_reply_layout()
