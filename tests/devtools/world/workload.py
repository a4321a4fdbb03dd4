"""Clients that load a broker, survive its crashes and record what they saw: for the fault suites.

Each reconnects whenever its connection breaks, through a `Connect` that may wait for a broker. They use the protocol
without a client library's retries, so that a test decides what is sent: several batches in flight, and after a crash
the same batches again, with the same sequence numbers.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from functools import lru_cache
from random import Random

import attrs
import trio

from kafscale.client.connection import Connection
from kafscale.client.consumer import EARLIEST, LATEST
from kafscale.errors import BrokerUnavailable, KafkaError
from kafscale.wire import error_codes
from kafscale.wire.batch_header import batches, parse_header
from kafscale.wire.messages.records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionData,
)
from kafscale.wire.records import Record, iterate_records
from tests.devtools.history.history import Content, History, Read

MAX_IN_FLIGHT = 5  # Kafka's limit for an idempotent producer
BATCH_RECORDS_MAX_COUNT = 8
PADDING_MAX_BYTES = 400
PAUSE_MAX_SECONDS = 0.01
PART_PROBABILITY = 0.5  # that a client takes part in a seed
FETCH_MAX_BYTES = 1 << 20
FETCH_MAX_WAIT_MS = 100
VALUE_HEADER = "value"
READ_BATCHES_MAX_COUNT = 10_000  # which several readers get, again and again; more than those of a seed

_ELSEWHERE = frozenset({error_codes.NOT_LEADER_OR_FOLLOWER, error_codes.NOT_COORDINATOR})

Run = Callable[[], Awaitable[None]]
Connect = Callable[[], Awaitable[Connection]]
Knows = Callable[[Connection, "Topic", int], bool]  # whether who answers can't be behind another broker


@attrs.define(eq=False)
class Topic:
    """A loaded topic. `topic_id` is 16 bytes; `partition_count` may grow.

    `label` is its name in the history: topics of the same name need different ones.
    """

    name: str
    topic_id: bytes
    partition_count: int
    label: str = attrs.field(default=attrs.Factory(lambda self: self.name, takes_self=True))

    def partition_name(self, index: int) -> str:
        return f"{self.label}-{index}"


def encode_value(value: str, padding_bytes: int) -> bytes:
    return value.encode() + b" " + b"." * padding_bytes


def value_of(record: Record) -> str:
    """Return a record's name in the history. A tombstone has it in a header."""
    for name, header in record.headers:
        if name == VALUE_HEADER and header is not None:
            return header.decode()
    return (record.value or b"").partition(b" ")[0].decode()


def content_of(record: Record) -> Content:
    """Return the content that must come back as it was sent."""
    whole = repr((record.key, record.value, record.timestamp_ms, list(record.headers)))
    return Content(record.timestamp_ms, zlib.crc32(whole.encode()), is_tombstone=record.value is None)


def knows_all(connection: Connection, topic: Topic, index: int) -> bool:
    """Accept any answer as up to date, as with one broker."""
    return True


@attrs.define(eq=False, kw_only=True)
class Reader:
    """Reads all partitions from their start on, over crashes, and records the reads, high watermarks and log starts.

    After a deletion it goes on at the log start, as a client with `auto.offset.reset=earliest`. `positions` are the
    first offsets, and `partitions` limits the partitions. Answers of a broker that does not `know` a partition are
    true, but may be outdated. `run` lets `pause_seconds` pass between polls.
    """

    name: str
    topic: Topic
    connect: Connect
    history: History
    positions: dict[int, int] = attrs.field(factory=dict)
    partitions: Sequence[int] | None = None
    knows: Knows = knows_all
    pause_seconds: float = 0.0
    ends: dict[int, int] = attrs.field(factory=dict, init=False)

    async def run(self) -> None:
        """Read until cancelled. Raises KafkaError."""
        await reconnecting(self.connect, self._poll_on, while_true=lambda: True)

    async def read_to_end(self) -> None:
        """Read up to the high watermarks, over crashes and moves. Raises KafkaError."""
        self.ends.clear()
        await reconnecting(self.connect, self._poll_to_end, while_true=self._is_before_end)

    def _is_before_end(self) -> bool:
        return any(self.positions.get(index, 0) < self.ends.get(index, math.inf) for index in self._partitions())

    async def _poll_to_end(self, connection: Connection) -> None:
        while self._is_before_end():
            await self.poll(connection)

    def _partitions(self) -> Sequence[int]:
        return range(self.topic.partition_count) if self.partitions is None else self.partitions

    async def _poll_on(self, connection: Connection) -> None:
        while True:
            await self.poll(connection)
            if self.pause_seconds:
                await trio.sleep(self.pause_seconds)

    async def poll(self, connection: Connection) -> None:
        began = self.history.now()
        response = await connection.request(self._request(), FetchResponse)
        for answer in (partition for topic in response.responses for partition in topic.partitions):
            if answer.error_code == error_codes.OFFSET_OUT_OF_RANGE:
                await self._go_to_log_start(connection, answer.partition_index)
            elif was_done(answer.error_code, self.topic.partition_name(answer.partition_index)):
                is_known = self.knows(connection, self.topic, answer.partition_index)
                self._take(answer, began if is_known else 0)

    async def _go_to_log_start(self, connection: Connection, index: int) -> None:
        start = await offset_at(connection, self.topic, index, EARLIEST)
        if start is None:
            return
        where = self.topic.partition_name(index)
        if start <= self.positions[index]:
            raise KafkaError(
                error_codes.OFFSET_OUT_OF_RANGE, f"{where} does not go to {self.positions[index]} any more"
            )
        self._sought(where)
        self.positions[index] = start

    def _sought(self, where: str) -> None:
        self.history.sought(self.name, where)

    def _request(self) -> FetchRequest:
        partitions = [
            FetchPartition(
                partition=index, fetch_offset=self.positions.setdefault(index, 0), partition_max_bytes=FETCH_MAX_BYTES
            )
            for index in self._partitions()
        ]
        return FetchRequest(
            max_wait_ms=FETCH_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_MAX_BYTES,
            topics=[FetchTopic(topic=self.topic.name, topic_id=self.topic.topic_id, partitions=partitions)],
        )

    def _take(self, answer: PartitionData, began: int) -> None:
        index = answer.partition_index
        where = self.topic.partition_name(index)
        self.ends[index] = answer.high_watermark
        self._note_offsets(answer, began)
        data = batches_of(answer)
        reads = [read_batch for read_batch in read_batches(data) if read_batch.offset >= self.positions[index]]
        self.history.marked(where, marker_offsets(data))
        if reads:
            self.history.polled(self.name, where, reads, began=began)
        self._advance(index, data)

    def _note_offsets(self, answer: PartitionData, began: int) -> None:
        self.history.saw_offsets(
            self.topic.partition_name(answer.partition_index),
            began=began,
            log_start_offset=answer.log_start_offset,
            high_watermark=answer.high_watermark,
        )

    def _advance(self, index: int, data: Sequence[memoryview]) -> None:
        for batch in data:  # compaction leaves some without a record, or without their last one
            self.positions[index] = max(self.positions[index], parse_header(batch).last_offset + 1)


def batches_of(answer: PartitionData) -> list[memoryview]:
    assert isinstance(answer.records, bytes | memoryview)
    return list(batches(memoryview(answer.records)))


def read_batches(data: Iterable[memoryview]) -> Iterator[Read]:
    """Return the records of batches, without the ends of transactions."""
    for batch in data:
        yield from _reads_of(bytes(batch))


@lru_cache(maxsize=READ_BATCHES_MAX_COUNT)
def _reads_of(data: bytes) -> Sequence[Read]:
    batch = memoryview(data)
    header = parse_header(batch)
    if header.is_control:
        return ()
    return tuple(
        Read(record.offset, value_of(record), content_of(record), header.leader_epoch)
        for record in iterate_records(batch)
    )


def forget_batches() -> None:
    """Clear the cache of batches, which another seed can't use and each garbage collection would visit."""
    _reads_of.cache_clear()


def marker_offsets(data: Iterable[memoryview]) -> list[int]:
    headers = map(parse_header, data)
    return [header.base_offset for header in headers if header.is_control]


@attrs.define(eq=False, kw_only=True)
class Repeating(ABC):
    """A client that repeats a step after random pauses, over crashes of the broker."""

    connect: Connect
    random: Random
    pause_max_seconds: float
    stopping: trio.Event | None = None  # None: until it is cancelled

    async def run(self) -> None:
        """Raises KafkaError for a refusal that can't be retried."""
        await reconnecting(self.connect, self._use, while_true=self._goes_on)

    def _goes_on(self) -> bool:
        return self.stopping is None or not self.stopping.is_set()

    async def _use(self, connection: Connection) -> None:
        while self._goes_on():
            await trio.sleep(self.random.uniform(0, self.pause_max_seconds))
            await self._step(connection)

    @abstractmethod
    async def _step(self, connection: Connection) -> None: ...


@attrs.define(eq=False, kw_only=True)
class Deleter(Repeating):
    """Client that deletes the records before a random offset of a random partition, again and again."""

    topic: Topic
    history: History

    async def _step(self, connection: Connection) -> None:
        index = self.random.randrange(self.topic.partition_count)
        end = await offset_at(connection, self.topic, index, LATEST)
        if end is None:
            return
        before_offset = self.random.choice([end, self.random.randint(0, end)])
        where = self.topic.partition_name(index)
        self.history.deleting(where, before_offset)
        partition = DeleteRecordsPartition(partition_index=index, offset=before_offset)
        topic = DeleteRecordsTopic(name=self.topic.name, partitions=[partition])
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=30_000)
        answer = (await connection.request(request, DeleteRecordsResponse)).topics[0].partitions[0]
        if was_done(answer.error_code, f"deletion before {before_offset} of {where}"):
            self.history.deleted(where, answer.low_watermark)


async def offset_at(connection: Connection, topic: Topic, index: int, timestamp_ms: int) -> int | None:
    """Return the offset that ListOffsets gives, also for EARLIEST or LATEST; None to ask again. Raises KafkaError."""
    answer = await ask_offset(connection, topic, index, timestamp_ms)
    return None if answer is None else answer.offset


async def ask_offset(
    connection: Connection, topic: Topic, index: int, timestamp_ms: int, *, level: int = 0
) -> ListOffsetsPartitionResponse | None:
    """Ask as `offset_at` does, and return the whole answer."""
    partition = ListOffsetsPartition(partition_index=index, timestamp=timestamp_ms)
    topics = [ListOffsetsTopic(name=topic.name, partitions=[partition])]
    request = ListOffsetsRequest(topics=topics, isolation_level=level)
    answer = (await connection.request(request, ListOffsetsResponse)).topics[0].partitions[0]
    return answer if was_done(answer.error_code, topic.partition_name(index)) else None


def was_done(error_code: int, what: str) -> bool:
    """Tell whether a request succeeded; False if it has to be tried again.

    Raises BrokerUnavailable if another broker has to be asked, KafkaError for any other refusal.
    """
    if error_code in _ELSEWHERE:
        raise BrokerUnavailable(what)
    if error_code and error_code not in error_codes.RETRIABLE:
        raise KafkaError(error_code, what)
    return not error_code


async def reconnecting(
    connect: Connect, use: Callable[[Connection], Awaitable[None]], *, while_true: Callable[[], bool]
) -> None:
    """Use one connection after another, over crashes of the broker."""
    while while_true():
        try:
            async with aclosing(await connect()) as connection:
                await use(connection)
        except BrokerUnavailable:
            await trio.sleep(PAUSE_MAX_SECONDS)
