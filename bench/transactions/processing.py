"""Read, process, write: each transaction takes a batch from one partition, writes as much to another, and commits how
far it has read, as Kafka Streams does under `exactly_once_v2`.

One request after the other on one connection. The group has no members, as none is needed to commit offsets.
"""

from __future__ import annotations

import socket
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from time import perf_counter, process_time

import attrs
import trio

from bench.figures import Figures
from bench.frames import (
    CLIENT_ID,
    FetchTemplate,
    check_fetch_head,
    fetch_reply_head_bytes,
    produce_error_code,
)
from bench.points import TOPIC, Point
from bench.transactions.frames import PRODUCE_VERSION, ProduceTemplate, Producing, end_txn_frame, end_txn_reply
from bench.transactions.identities import identities
from bench.transactions.producer import BACK_OFF_SECONDS
from kafscale.client.client import connect
from kafscale.client.consumer import IsolationLevel
from kafscale.config import Address
from kafscale.config.units import KIB, MIB
from kafscale.wire import codec
from kafscale.wire.batch_header import batches, parse_header
from kafscale.wire.error_codes import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    NONE,
    NOT_COORDINATOR,
    name,
)
from kafscale.wire.frames import RequestHeader, request_frame
from kafscale.wire.messages.offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

INPUT, OUTPUT = 0, 1  # partitions
POINT = Point(batch_bytes=16 * KIB, in_flight=5, partitions=1)
TRANSACTIONAL_ID, GROUP = "bench-processor", "bench-processor"
COMMIT_VERSION = 5  # enrols the group by itself (KIP-890)
FETCH_BYTES = 16 * KIB  # one batch: the first one comes whole
WITHIN_SECONDS = 60.0
_HEAD_BYTES = 9  # of a flexible reply: size, correlation id, no tags
_AGAIN = (COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR)


@attrs.frozen(kw_only=True)
class ProcessingLoad:
    """Process what the first partition has, up to `end_offset`, again and again."""

    address: Address
    end_offset: int
    seconds: float


def run_processing(load: ProcessingLoad) -> Figures:
    """A request is a transaction, from its fetch to its end. Raises RuntimeError if the broker refuses."""
    (producing,) = identities(load.address, [TRANSACTIONAL_ID])
    trio.run(_find_group, load.address)
    address = load.address.host, load.address.port
    with closing(socket.create_connection(address, timeout=WITHIN_SECONDS)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        processor = _Processor(connection, producing)
        processor.transact(load.end_offset)  # the group's coordinator has loaded its partition by then
        latencies = array("d")
        processor.concurrent_count, processor.written_bytes = 0, 0
        began, cpu_began = perf_counter(), process_time()
        now = began
        while now < began + load.seconds:
            processor.transact(load.end_offset)
            begun, now = now, perf_counter()
            latencies.append(now - begun)
    figures = Figures.of(
        latencies,
        seconds=now - began,
        size_bytes=processor.written_bytes,
        client_cpu_seconds=process_time() - cpu_began,
    )
    return attrs.evolve(figures, concurrent_count=processor.concurrent_count)


async def _find_group(address: Address) -> None:
    """Make Kafka create `__consumer_offsets`, which it does when it is first asked for a coordinator."""
    async with connect(address, CLIENT_ID) as client:
        await client.coordinator(GROUP)


@attrs.define(eq=False)
class _Processor:
    socket: socket.socket
    producing: Producing
    offset: int = 0
    concurrent_count: int = 0
    written_bytes: int = 0
    _fetch: FetchTemplate = attrs.field(init=False)
    _produce: ProduceTemplate = attrs.field(init=False)
    _buffer: memoryview = attrs.field(factory=lambda: memoryview(bytearray(MIB)), init=False)

    def __attrs_post_init__(self) -> None:
        self._fetch = FetchTemplate.of(INPUT, FETCH_BYTES, isolation_level=IsolationLevel.READ_COMMITTED)
        self._produce = ProduceTemplate.of(POINT, OUTPUT, TRANSACTIONAL_ID)

    def transact(self, end_offset: int) -> None:
        """One transaction."""
        for offset in self._read():
            self.offset = offset
        self._until_done(self._write)
        self._until_done(self._commit_offset)
        self._until_done(self._end)
        self.written_bytes += self._produce.batch_bytes
        if self.offset >= end_offset:
            self.offset = 0

    def _until_done(self, attempt: Callable[[], int]) -> None:
        deadline = perf_counter() + WITHIN_SECONDS
        while (error_code := attempt()) != NONE:
            if error_code == CONCURRENT_TRANSACTIONS:
                self.concurrent_count += 1
            elif error_code not in _AGAIN or perf_counter() > deadline:
                raise RuntimeError(f"the broker refused a request: {name(error_code)}")
            time.sleep(BACK_OFF_SECONDS)

    def _read(self) -> Iterator[int]:
        reply = self._ask(self._fetch.at(self.offset))
        check_fetch_head(reply)
        records = reply[fetch_reply_head_bytes() :]
        if not records:
            raise RuntimeError(f"no records at offset {self.offset}")
        for batch in batches(records):
            yield parse_header(batch).next_offset

    def _write(self) -> int:
        reply = self._ask(self._produce.of_producer(0, self.producing, 0))
        return produce_error_code(reply, PRODUCE_VERSION)

    def _commit_offset(self) -> int:
        partition = TxnOffsetCommitRequestPartition(
            partition_index=INPUT, committed_offset=self.offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=TRANSACTIONAL_ID,
            group_id=GROUP,
            producer_id=self.producing.producer_id,
            producer_epoch=self.producing.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
        )
        header = RequestHeader(TxnOffsetCommitRequest.API_KEY, COMMIT_VERSION, 0, CLIENT_ID)
        frame = b"".join(request_frame(header, codec.encode(request, COMMIT_VERSION), flexible_header=True))
        response = codec.decode(TxnOffsetCommitResponse, COMMIT_VERSION, self._ask(frame)[_HEAD_BYTES:])
        return response.topics[0].partitions[0].error_code

    def _end(self) -> int:
        error_code, following = end_txn_reply(self._ask(end_txn_frame(0, TRANSACTIONAL_ID, self.producing)))
        if error_code == NONE:
            self.producing = following
        return error_code

    def _ask(self, frame: bytes | bytearray) -> memoryview:
        self.socket.sendall(frame)
        filled_bytes, wanted_bytes = 0, 4
        while filled_bytes < wanted_bytes:
            count = self.socket.recv_into(self._buffer[filled_bytes:])
            if not count:
                raise RuntimeError("the broker closed the connection")
            filled_bytes += count
            if filled_bytes >= 4:
                wanted_bytes = 4 + int.from_bytes(self._buffer[:4], "big")
        return self._buffer[:wanted_bytes]
