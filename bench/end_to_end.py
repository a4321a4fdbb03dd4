"""The time from the moment when a batch was due to be sent until a consumer that waits at the end of the log has it.

One thread sends at a fixed rate, another fetches with one request in flight, as a consumer does.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from array import array
from time import perf_counter, process_time

import attrs

from bench.figures import Figures
from bench.frames import FetchTemplate, ProduceRing, check_fetch_head, fetch_reply_head_bytes
from bench.points import Point
from kafscale.config import Address
from kafscale.config.units import MIB

FETCH_BYTES = MIB
LOST_SECONDS = 30


@attrs.frozen(kw_only=True)
class EndToEndLoad:
    """Batches of the point to partition 0 of an empty topic."""

    address: Address
    point: Point
    seconds: float
    requests_per_second: float


def run_end_to_end(load: EndToEndLoad) -> Figures:
    """Latencies are of batches, sent until seen. Raises RuntimeError if one is not seen."""
    count = int(load.requests_per_second * load.seconds)
    period_seconds = 1 / load.requests_per_second
    consumer = _Consumer(address=load.address, point=load.point, count=count)
    cpu_began = process_time()
    thread = threading.Thread(target=consumer.run, daemon=True)
    thread.start()
    ring = ProduceRing.of(load.point, [0])
    with socket.create_connection((load.address.host, load.address.port), timeout=LOST_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = perf_counter()
        for number in range(count):
            due_at = began + number * period_seconds
            while True:
                pause_seconds = max(0.0, due_at - perf_counter())
                if not select.select([connection], [], [], pause_seconds)[0]:
                    break
                connection.recv(FETCH_BYTES)  # an unread reply would in the end stop the broker from reading
            start = number % ring.count * ring.frame_bytes
            connection.sendall(ring.frames[start : start + ring.frame_bytes])
        thread.join(LOST_SECONDS)
    if len(consumer.seen_at) < count:
        raise RuntimeError(f"the consumer saw {len(consumer.seen_at)} of {count} batches")
    return Figures.of(
        [seen_at - (began + number * period_seconds) for number, seen_at in enumerate(consumer.seen_at)],
        seconds=perf_counter() - began,
        size_bytes=count * ring.batch_bytes,
        client_cpu_seconds=process_time() - cpu_began,
    )


@attrs.define(eq=False, kw_only=True)
class _Consumer:
    address: Address
    point: Point
    count: int
    seen_at: array[float] = attrs.field(factory=lambda: array("d"), init=False)

    def run(self) -> None:
        """Fetch until every batch was seen."""
        template = FetchTemplate.of(0, FETCH_BYTES)
        buffer = memoryview(bytearray(4 * FETCH_BYTES))
        with socket.create_connection((self.address.host, self.address.port), timeout=LOST_SECONDS) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while len(self.seen_at) < self.count:
                connection.sendall(template.at(len(self.seen_at) * self.point.record_count))
                _receive(connection, buffer[: _size.size])
                (size,) = _size.unpack_from(buffer)
                _receive(connection, buffer[_size.size : _size.size + size])
                now = perf_counter()
                check_fetch_head(buffer)
                position = _HEAD_BYTES
                while position < _size.size + size:
                    self.seen_at.append(now)
                    position += _BATCH_OVERHEAD_BYTES + _size.unpack_from(buffer, position + 8)[0]


def _receive(connection: socket.socket, into: memoryview) -> None:
    while into:
        count = connection.recv_into(into)
        if not count:
            raise RuntimeError("the broker closed the connection")
        into = into[count:]


_size = struct.Struct(">i")
_BATCH_OVERHEAD_BYTES = 12  # base offset and length, which the length does not count
_HEAD_BYTES = fetch_reply_head_bytes()
