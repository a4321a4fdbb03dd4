"""Clients that load a broker, survive its crashes and write down what they saw: for the fault suites.

Each of them connects anew whenever its connection breaks, through a `Connect` that may wait until there is a broker
again. They use the protocol themselves rather than a client library's retries, so that what goes over the wire is
exactly what a test wants: several batches in flight, and after a crash the same batches again, with the same sequence
numbers.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from random import Random

import attrs
import trio

from kafscale.client.connection import Connection, Reply
from kafscale.client.offsets import EARLIEST, LATEST
from kafscale.errors import BrokerUnavailable, KafkaError
from kafscale.testing.history import History, Read
from kafscale.wire import error_codes
from kafscale.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kafscale.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from kafscale.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from kafscale.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kafscale.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kafscale.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kafscale.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kafscale.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from kafscale.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kafscale.wire.records import ProducerStamp, Record, batches, build_batch, iterate_records, parse_header

MAX_IN_FLIGHT = 5  # Kafka's limit for an idempotent producer
BATCH_RECORDS_MAX_COUNT = 8
PADDING_MAX_BYTES = 400
PAUSE_MAX_SECONDS = 0.01
FETCH_MAX_BYTES = 1 << 20
FETCH_MAX_WAIT_MS = 50

Connect = Callable[[], Awaitable[Connection]]


class OutOfSequence(Exception):
    """The broker refused the batch that was due: it has lost, or invented, a predecessor."""


@attrs.frozen
class Topic:
    """The topic that is loaded. `topic_id` is 16 bytes."""

    name: str
    topic_id: bytes
    partition_count: int

    def partition_name(self, index: int) -> str:
        """As the history calls it."""
        return f"{self.name}-{index}"


@attrs.frozen(eq=False)
class _Batch:
    partition: int
    data: bytearray
    values: Sequence[str]


def encode_value(value: str, padding_bytes: int) -> bytes:
    """A record's value: what the history knows of it, and filling."""
    return value.encode() + b" " + b"." * padding_bytes


def decode_value(data: bytes | None) -> str:
    """The other way round."""
    return (data or b"").partition(b" ")[0].decode()


@attrs.define(eq=False, kw_only=True)
class IdempotentProducer:
    """Sends batches of a few records to random partitions until `stopping`, and then whatever has no answer yet."""

    name: str
    topic: Topic
    connect: Connect
    history: History
    random: Random
    stopping: trio.Event
    pause_max_seconds: float = PAUSE_MAX_SECONDS
    padding_max_bytes: int = PADDING_MAX_BYTES
    keys_count: int | None = None  # how many keys a partition has; None for one of its own for each value
    acknowledged_count: int = attrs.field(default=0, init=False)  # batches
    _stamp: ProducerStamp | None = attrs.field(default=None, init=False)
    _sequences: dict[int, int] = attrs.field(factory=dict, init=False)
    _unacknowledged: deque[_Batch] = attrs.field(factory=deque, init=False)
    _number: int = attrs.field(default=0, init=False)

    async def run(self) -> None:
        """Raises OutOfSequence; KafkaError for a refusal that can't be retried."""
        await _reconnecting(
            self.connect, self._use, while_true=lambda: bool(self._unacknowledged) or not self.stopping.is_set()
        )

    async def _use(self, connection: Connection) -> None:
        if self._stamp is None:
            asked = InitProducerIdRequest(transaction_timeout_ms=1000)
            given = await connection.request(asked, InitProducerIdResponse)
            if given.error_code:
                raise KafkaError(given.error_code)
            self._stamp = ProducerStamp(given.producer_id, given.producer_epoch, 0)
        again = deque(self._unacknowledged)
        in_flight: deque[tuple[_Batch, Reply[ProduceResponse]]] = deque()
        while True:
            while len(in_flight) < MAX_IN_FLIGHT and (again or not self.stopping.is_set()):
                batch = again.popleft() if again else self._make(self._stamp)
                in_flight.append((batch, await connection.send(self._request(batch), ProduceResponse)))
                if self.random.random() < 0.5:
                    break
            if not in_flight:
                return
            batch, reply = in_flight.popleft()
            if not self._take(batch, await reply.wait()):
                return
            await trio.sleep(self.random.uniform(0, self.pause_max_seconds))

    def _make(self, stamp: ProducerStamp) -> _Batch:
        partition = self.random.randrange(self.topic.partition_count)
        keys: dict[str, str] = {}  # of each value
        for _ in range(self.random.randint(1, BATCH_RECORDS_MAX_COUNT)):
            value = f"{self.name}:{self._number}"
            shared = None if self.keys_count is None else f"key{self.random.randrange(self.keys_count)}"
            keys[value] = shared or value
            self._number += 1
            self.history.sent(self.name, self.topic.partition_name(partition), value, key=shared)
        values = list(keys)
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + len(values)
        padding_bytes = self.random.randint(0, self.padding_max_bytes)
        now_ms = time.time_ns() // 1_000_000  # what is older than the retention would be deleted
        records = [
            Record(key=key.encode(), value=encode_value(value, padding_bytes), timestamp_ms=now_ms)
            for value, key in keys.items()
        ]
        data = build_batch(records, producer=attrs.evolve(stamp, base_sequence=sequence))
        batch = _Batch(partition, data, values)
        self._unacknowledged.append(batch)
        return batch

    def _request(self, batch: _Batch) -> ProduceRequest:
        data = PartitionProduceData(index=batch.partition, records=memoryview(batch.data))
        topic = TopicProduceData(name=self.topic.name, partition_data=[data])
        return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])

    def _take(self, batch: _Batch, response: ProduceResponse) -> bool:
        """Note an answer; False if everything without one must be sent again, on a new connection."""
        answer = response.responses[0].partition_responses[0]
        if answer.error_code in error_codes.RETRIABLE:
            return False
        where = self.topic.partition_name(batch.partition)
        if answer.error_code == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER:
            raise OutOfSequence(f"{batch.values[0]} in {where}: {answer.error_message}")
        if answer.error_code:
            raise KafkaError(answer.error_code, answer.error_message or where)
        self._unacknowledged.remove(batch)
        self.acknowledged_count += 1
        for index, value in enumerate(batch.values):
            self.history.acknowledged(where, value, answer.base_offset + index)
        return True


@attrs.define(eq=False, kw_only=True)
class Reader:
    """Reads all partitions from their start on, over crashes, and notes records, high watermarks and log starts.

    Where what it would read next is deleted it goes on at the log start, as a client with `auto.offset.reset=earliest`.
    `positions` may name where to begin, and `partitions` some of all.
    """

    name: str
    topic: Topic
    connect: Connect
    history: History
    positions: dict[int, int] = attrs.field(factory=dict)
    partitions: Sequence[int] = attrs.field(
        default=attrs.Factory(lambda self: range(self.topic.partition_count), takes_self=True)
    )
    ends: dict[int, int] = attrs.field(factory=dict, init=False)

    async def run(self) -> None:
        """Read until cancelled. Raises KafkaError."""
        await _reconnecting(self.connect, self._poll_on, while_true=lambda: True)

    async def read_to_end(self) -> None:
        """Read up to the high watermarks; the broker must stay. Raises KafkaError, BrokerUnavailable."""
        async with aclosing(await self.connect()) as connection:
            await self.poll(connection)
            while any(self.positions[index] < self.ends.get(index, math.inf) for index in self.partitions):
                await self.poll(connection)

    async def _poll_on(self, connection: Connection) -> None:
        while True:
            await self.poll(connection)

    async def poll(self, connection: Connection) -> None:
        """One fetch of every partition, whole batches."""
        began = self.history.now()
        response = await connection.request(self._request(), FetchResponse)
        for answer in (each for topic in response.responses for each in topic.partitions):
            if answer.error_code == error_codes.OFFSET_OUT_OF_RANGE:
                await self._go_to_log_start(connection, answer.partition_index)
            elif _was_done(answer.error_code, self.topic.partition_name(answer.partition_index)):
                self._take(answer, began)

    async def _go_to_log_start(self, connection: Connection, index: int) -> None:
        start = await _offset_at(connection, self.topic, index, EARLIEST)
        if start is None:
            return
        where = self.topic.partition_name(index)
        if start <= self.positions[index]:
            raise KafkaError(
                error_codes.OFFSET_OUT_OF_RANGE, f"{where} does not go to {self.positions[index]} any more"
            )
        self.history.sought(self.name, where)
        self.positions[index] = start

    def _request(self) -> FetchRequest:
        partitions = [
            FetchPartition(
                partition=index, fetch_offset=self.positions.setdefault(index, 0), partition_max_bytes=FETCH_MAX_BYTES
            )
            for index in self.partitions
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
        self.history.saw_offsets(
            where, began=began, log_start_offset=answer.log_start_offset, high_watermark=answer.high_watermark
        )
        assert isinstance(answer.records, bytes | memoryview)
        data = memoryview(answer.records)
        reads = [each for each in read_batches(data) if each.offset >= self.positions[index]]
        if reads:
            self.history.polled(self.name, where, reads, began=began)
        for batch in batches(data):  # compaction leaves some without a record, or without their last one
            self.positions[index] = max(self.positions[index], parse_header(batch).last_offset + 1)


def read_batches(data: memoryview) -> Iterator[Read]:
    """The records of concatenated batches, as the history wants them."""
    for batch in batches(data):
        for record in iterate_records(batch):
            yield Read(record.offset, decode_value(record.value))


@attrs.define(eq=False, kw_only=True)
class Committer:
    """Commits growing offsets of one group, and after each reconnection asks which one the broker has."""

    group: str
    topic: Topic
    connect: Connect
    history: History
    random: Random
    stopping: trio.Event
    _offset: int = attrs.field(default=0, init=False)

    async def run(self) -> None:
        """Raises KafkaError."""
        await _reconnecting(self.connect, self._use, while_true=lambda: not self.stopping.is_set())

    async def check(self) -> None:
        """Compare what the broker has. Raises KafkaError, BrokerUnavailable."""
        async with aclosing(await self.connect()) as connection:
            await self._fetch(connection)

    async def _use(self, connection: Connection) -> None:
        await self._fetch(connection)
        while not self.stopping.is_set():
            await self._commit(connection)
            await trio.sleep(self.random.uniform(0, 4 * PAUSE_MAX_SECONDS))

    async def _commit(self, connection: Connection) -> None:
        self._offset += 1
        partitions = [
            OffsetCommitRequestPartition(partition_index=index, committed_offset=self._offset)
            for index in range(self.topic.partition_count)
        ]
        for index in range(self.topic.partition_count):
            self.history.committing(self.group, self.topic.partition_name(index), self._offset)
        topics = [OffsetCommitRequestTopic(name=self.topic.name, partitions=partitions)]
        request = OffsetCommitRequest(group_id=self.group, member_id="", topics=topics)
        response = await connection.request(request, OffsetCommitResponse)
        for answer in response.topics[0].partitions:
            if _was_done(answer.error_code, f"commit of group {self.group}"):
                self.history.committed(self.group, self.topic.partition_name(answer.partition_index), self._offset)

    async def _fetch(self, connection: Connection) -> None:
        indexes = list(range(self.topic.partition_count))
        wanted = OffsetFetchRequestTopic(name=self.topic.name, partition_indexes=indexes)
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=self.group, topics=[wanted])])
        group = (await connection.request(request, OffsetFetchResponse)).groups[0]
        for answer in (each for topic in group.topics for each in topic.partitions):
            if not answer.error_code and not group.error_code:
                where = self.topic.partition_name(answer.partition_index)
                self.history.fetched_commit(self.group, where, answer.committed_offset)


@attrs.define(eq=False, kw_only=True)
class Deleter:
    """Has what is before a random offset of a random partition deleted, again and again."""

    topic: Topic
    connect: Connect
    history: History
    random: Random
    stopping: trio.Event
    pause_max_seconds: float

    async def run(self) -> None:
        """Raises KafkaError for a refusal that can't be retried."""
        await _reconnecting(self.connect, self._use, while_true=lambda: not self.stopping.is_set())

    async def _use(self, connection: Connection) -> None:
        while not self.stopping.is_set():
            await trio.sleep(self.random.uniform(0, self.pause_max_seconds))
            await self._delete(connection, self.random.randrange(self.topic.partition_count))

    async def _delete(self, connection: Connection, index: int) -> None:
        end = await _offset_at(connection, self.topic, index, LATEST)
        if end is None:
            return
        before_offset = self.random.choice([end, self.random.randint(0, end)])
        where = self.topic.partition_name(index)
        self.history.deleting(where, before_offset)
        partition = DeleteRecordsPartition(partition_index=index, offset=before_offset)
        topic = DeleteRecordsTopic(name=self.topic.name, partitions=[partition])
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=30_000)
        answer = (await connection.request(request, DeleteRecordsResponse)).topics[0].partitions[0]
        if _was_done(answer.error_code, f"deletion before {before_offset} of {where}"):
            self.history.deleted(where, answer.low_watermark)


async def _offset_at(connection: Connection, topic: Topic, index: int, timestamp_ms: int) -> int | None:
    """What ListOffsets says, for EARLIEST or LATEST too; None if it has to be asked again. Raises KafkaError."""
    partition = ListOffsetsPartition(partition_index=index, timestamp=timestamp_ms)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic.name, partitions=[partition])])
    answer = (await connection.request(request, ListOffsetsResponse)).topics[0].partitions[0]
    return answer.offset if _was_done(answer.error_code, topic.partition_name(index)) else None


def _was_done(error_code: int, what: str) -> bool:
    """False if it has to be tried again. Raises KafkaError for a refusal that can't be."""
    if error_code and error_code not in error_codes.RETRIABLE:
        raise KafkaError(error_code, what)
    return not error_code


async def _reconnecting(
    connect: Connect, use: Callable[[Connection], Awaitable[None]], *, while_true: Callable[[], bool]
) -> None:
    """Use one connection after another, over crashes of the broker."""
    while while_true():
        try:
            async with aclosing(await connect()) as connection:
                await use(connection)
        except BrokerUnavailable:
            await trio.sleep(PAUSE_MAX_SECONDS)


async def create_topic(connect: Connect, name: str, configs: Mapping[str, str] | None = None) -> Topic:
    """Let the broker create a topic, with its default number of partitions. Raises BrokerUnavailable, KafkaError."""
    async with aclosing(await connect()) as connection:
        if configs:
            await _create_with(connection, name, configs)
        while True:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
            found = (await connection.request(request, MetadataResponse)).topics[0]
            if not found.error_code:
                return Topic(name, found.topic_id, len(found.partitions))
            await trio.sleep(PAUSE_MAX_SECONDS)


async def _create_with(connection: Connection, name: str, configs: Mapping[str, str]) -> None:
    wanted = CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    answer = (await connection.request(CreateTopicsRequest(topics=[wanted]), CreateTopicsResponse)).topics[0]
    if answer.error_code not in (error_codes.NONE, error_codes.TOPIC_ALREADY_EXISTS):
        raise KafkaError(answer.error_code, answer.error_message or name)
