"""Fetching partitions from their beginning to their end, again and again, one request in flight per connection.

Responses are received into one buffer that is used again; of the batches only the last one's header is looked at, since
all batches of a load have the same size. Where markers of transactions are between them, each header is.
"""

from __future__ import annotations

import select
import socket
import struct
from array import array
from time import perf_counter, process_time

import attrs

from bench.figures import Figures
from bench.frames import FetchTemplate, check_fetch_head, fetch_reply_head_bytes
from bench.secured.sasl_ssl import SaslSsl
from bench.secured.sockets import connect
from kafscale.client.consumer import IsolationLevel
from kafscale.config import Address
from kafscale.config.units import KIB
from kafscale.wire.batch_header import LENGTH_END

STALL_SECONDS = 60
SPARE_BYTES = 64 * KIB  # of the buffer, for the head of a response


@attrs.frozen(kw_only=True)
class FetchLoad:
    """One connection per partition; each holds `end_offset` records in batches of exactly `batch_bytes`.

    has_markers: whether there are markers of transactions between these, which have offsets too.
    security: None for a broker without TLS.
    """

    address: Address
    partitions: int
    batch_bytes: int
    end_offset: int
    max_bytes: int
    seconds: float
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    has_markers: bool = False
    security: SaslSsl | None = None


def run_fetch(load: FetchLoad) -> Figures:
    """Fetch until the time is over. Raises RuntimeError, KafkaError if the broker does not answer as it should."""
    consumers = [_Consumer(load=load, partition=index) for index in range(load.partitions)]
    latencies = array("d")
    poll = select.poll()
    by_descriptor = {consumer.connection.fileno(): consumer for consumer in consumers}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    began, cpu_began = perf_counter(), process_time()
    deadline = began + load.seconds
    for consumer in consumers:
        consumer.ask()
    while (now := perf_counter()) < deadline:
        events = poll.poll(STALL_SECONDS * 1000)
        if not events:
            raise RuntimeError(f"the broker has not answered for {STALL_SECONDS} s")
        for descriptor, _ in events:
            consumer = by_descriptor[descriptor]
            if consumer.receive():
                now = perf_counter()
                latencies.append(now - consumer.asked_at)
                consumer.ask()
    figures = Figures.of(
        latencies,
        seconds=perf_counter() - began,
        size_bytes=sum(consumer.fetched_bytes for consumer in consumers),
        client_cpu_seconds=process_time() - cpu_began,
    )
    for consumer in consumers:
        consumer.connection.close()
    return figures


@attrs.define(eq=False, kw_only=True)
class _Consumer:
    load: FetchLoad
    partition: int
    connection: socket.socket = attrs.field(init=False)
    template: FetchTemplate = attrs.field(init=False)
    buffer: memoryview = attrs.field(init=False)
    filled_bytes: int = 0
    offset: int = 0
    asked_at: float = 0.0
    fetched_bytes: int = 0

    def __attrs_post_init__(self) -> None:
        self.connection = connect(self.load.address, self.load.security)
        self.template = FetchTemplate.of(self.partition, self.load.max_bytes, isolation_level=self.load.isolation_level)
        self.buffer = memoryview(bytearray(max(self.load.max_bytes, self.load.batch_bytes) + SPARE_BYTES))

    def ask(self) -> None:
        self.filled_bytes = 0
        self.asked_at = perf_counter()
        self.connection.sendall(self.template.at(self.offset))

    def receive(self) -> bool:
        """Take what is there; whether the response is complete."""
        try:
            count = self.connection.recv_into(self.buffer[self.filled_bytes :])
        except BlockingIOError:
            return False
        if not count:
            raise RuntimeError("the broker closed the connection")
        self.filled_bytes += count
        if self.filled_bytes < _size.size or self.filled_bytes < _size.size + _size.unpack_from(self.buffer)[0]:
            return False
        self._take_response()
        return True

    def _take_response(self) -> None:
        check_fetch_head(self.buffer)
        if self.load.has_markers:
            self._take_each()
        else:
            self._take_alike()
        if self.offset >= self.load.end_offset:
            self.offset = 0

    def _take_alike(self) -> None:
        batch_count = (self.filled_bytes - _HEAD_BYTES) // self.load.batch_bytes
        if not batch_count:
            raise RuntimeError(f"no records at offset {self.offset} of partition {self.partition}")
        last = _HEAD_BYTES + (batch_count - 1) * self.load.batch_bytes
        base_offset, length, last_offset_delta = _batch.unpack_from(self.buffer, last)
        if base_offset + last_offset_delta < self.offset or length != self.load.batch_bytes - LENGTH_END:
            raise RuntimeError(f"other batches than were produced at offset {self.offset}")
        self.fetched_bytes += batch_count * self.load.batch_bytes
        self.offset = base_offset + last_offset_delta + 1

    def _take_each(self) -> None:
        position, asked_offset = _HEAD_BYTES, self.offset
        while position + _batch.size <= self.filled_bytes:
            base_offset, length, last_offset_delta = _batch.unpack_from(self.buffer, position)
            position += LENGTH_END + length
            if position > self.filled_bytes:
                break
            self.offset = base_offset + last_offset_delta + 1
            if length == self.load.batch_bytes - LENGTH_END:
                self.fetched_bytes += self.load.batch_bytes
        if self.offset <= asked_offset:
            raise RuntimeError(f"no records at offset {asked_offset} of partition {self.partition}")


_size = struct.Struct(">i")
_batch = struct.Struct(">qi11xi")  # base offset, length, last offset delta
_HEAD_BYTES = fetch_reply_head_bytes()
