"""The clients of `bench.memory`: they write down what they sent, were told and read, and go on over errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import attrs
import trio

from kafscale.client import admin
from kafscale.client.client import connect
from kafscale.client.connection import Connection
from kafscale.config import Address
from kafscale.config.units import KIB, MIB
from kafscale.errors import BrokerUnavailable, KafkaError
from kafscale.wire import error_codes
from kafscale.wire.batch_header import batches, parse_header
from kafscale.wire.messages.records import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from tests.devtools.history.history import History
from tests.devtools.world.producers import IdempotentProducer
from tests.devtools.world.workload import Connect, Reader, Topic

TOPIC = "memory"
PADDING_MAX_BYTES = 16 * KIB
RETENTION_BYTES = 24 * MIB  # of a partition: the stand-in store has all objects in memory
BACKLOG_BYTES = 4 * MIB  # of one fetch
SETTLE_SECONDS = 180.0
PAUSE_SECONDS = 0.5
SMALL_PAUSE_SECONDS = 0.01


@attrs.define(eq=False, kw_only=True)
class MemoryLoad:
    """Producers, consumers at the tail with a partition each, and consumers of the backlog."""

    address: Address
    producers_count: int
    tail_count: int
    backlog_count: int
    history: History = attrs.field(factory=History, init=False)
    topic: Topic = attrs.field(init=False)
    _producers: Sequence[IdempotentProducer] = attrs.field(default=(), init=False)
    _readers: Sequence[Reader] = attrs.field(default=(), init=False)
    _stopping: trio.Event = attrs.field(factory=trio.Event, init=False)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Create the topic and run all clients for the block; then producers wait for their last answers.

        Raises KafkaError, OutOfSequence.
        """
        await self._create_topic()
        self._producers = [self._producer(number) for number in range(self.producers_count)]
        self._readers = [self._reader(index) for index in range(self.tail_count)]
        async with trio.open_nursery() as reading:
            for reader in self._readers:
                reading.start_soon(reader.run)
            for number in range(self.backlog_count):
                reading.start_soon(BacklogReader(topic=self.topic, connect=self._connect, number=number).run)
            async with trio.open_nursery() as writing:
                for producer in self._producers:
                    writing.start_soon(producer.run)
                yield
                self._stopping.set()
                writing.cancel_scope.deadline = trio.current_time() + SETTLE_SECONDS
            reading.cancel_scope.cancel()

    async def read_to_end(self) -> None:
        """Let the consumers at the tail read what is left, once nothing more is produced. Raises TooSlowError."""
        with trio.fail_after(SETTLE_SECONDS):
            async with trio.open_nursery() as nursery:
                for reader in self._readers:
                    nursery.start_soon(reader.read_to_end)

    def acknowledged_counts(self) -> Sequence[int]:
        """Batches, by producer."""
        return [producer.acknowledged_count for producer in self._producers]

    async def _create_topic(self) -> None:
        configs = {"retention.bytes": str(RETENTION_BYTES), "file.delete.delay.ms": "1000"}
        async with connect(self.address, "bench") as client:
            new = admin.TopicToCreate(
                name=TOPIC, partition_count=self.tail_count, replication_factor=1, configs=configs
            )
            await admin.create_topic(client, new)
            described = await client.topic(TOPIC)
        self.topic = Topic(TOPIC, described.topic_id, self.tail_count)

    async def _connect(self) -> Connection:
        try:
            stream = await trio.open_tcp_stream(self.address.host, self.address.port)
        except OSError as exc:
            raise BrokerUnavailable(f"{self.address}: {exc}") from exc
        try:
            return await Connection.over(stream, self.address)
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise

    def _producer(self, number: int) -> IdempotentProducer:
        return IdempotentProducer(
            name=f"p{number}",
            topic=self.topic,
            connect=self._connect,
            history=self.history,
            random=Random(number),
            stopping=self._stopping,
            pause_max_seconds=SMALL_PAUSE_SECONDS,
            padding_max_bytes=PADDING_MAX_BYTES,
        )

    def _reader(self, index: int) -> Reader:
        return Reader(
            name=f"tail-{index}", topic=self.topic, connect=self._connect, history=self.history, partitions=[index]
        )


@attrs.define(eq=False, kw_only=True)
class BacklogReader:
    """Reads whole partitions from the log's start, one after the other, without a look at the records."""

    topic: Topic
    connect: Connect
    number: int

    async def run(self) -> None:
        """Run until cancelled."""
        index = self.number
        while True:
            index = (index + 1) % self.topic.partition_count
            try:
                await self._read(await self.connect(), index)
            except BrokerUnavailable:
                await trio.sleep(PAUSE_SECONDS)

    async def _read(self, connection: Connection, index: int) -> None:
        offset, end = 0, 1
        try:
            while offset < end:
                answer = await self._fetch(connection, index, offset)
                offset, end = max(offset, answer.log_start_offset), answer.high_watermark
                if answer.error_code in error_codes.RETRIABLE:
                    await trio.sleep(PAUSE_SECONDS)
                elif answer.error_code not in (error_codes.NONE, error_codes.OFFSET_OUT_OF_RANGE):
                    raise KafkaError(answer.error_code, self.topic.partition_name(index))
                records = answer.records or b""
                assert isinstance(records, bytes | memoryview)  # decoded: one buffer
                for batch in batches(memoryview(records)):
                    offset = parse_header(batch).last_offset + 1
        finally:
            await connection.aclose()

    async def _fetch(self, connection: Connection, index: int, offset: int) -> PartitionData:
        wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=BACKLOG_BYTES)
        topics = [FetchTopic(topic=self.topic.name, topic_id=self.topic.topic_id, partitions=[wanted])]
        request = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=BACKLOG_BYTES, topics=topics)
        response = await connection.request(request, FetchResponse)
        return response.responses[0].partitions[0]
