"""Producers of a workload: idempotent ones, which resend unanswered batches, and plain ones, which never do."""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from random import Random

import attrs
import trio

from kafscale.client.connection import Connection, Reply
from kafscale.errors import BrokerUnavailable, KafkaError
from kafscale.wire import error_codes
from kafscale.wire.messages.records import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from kafscale.wire.records import ProducerStamp, Record, build_batch
from tests.devtools.history.history import History
from tests.devtools.world.workload import (
    PAUSE_MAX_SECONDS,
    VALUE_HEADER,
    Connect,
    Topic,
    content_of,
    encode_value,
    reconnecting,
)

MAX_IN_FLIGHT = 5  # Kafka's limit for an idempotent producer
BY_TOPIC_ID = 13  # the version of Produce
BATCH_RECORDS_MAX_COUNT = 8
RETRY_MAX_SECONDS = 0.1
PADDING_MAX_BYTES = 400
CLOCK_SKEW_MAX_MS = 2_000  # timestamps of records are not in the order of their offsets
TOMBSTONE_PROBABILITY = 0.2  # of a record whose key others have too

_WITHOUT_PREDECESSOR = frozenset(
    {
        error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
        error_codes.UNKNOWN_PRODUCER_ID,
        error_codes.INVALID_PRODUCER_ID_MAPPING,
    }
)


class OutOfSequence(Exception):
    """The broker refused the batch that was due: it has lost, or invented, a predecessor."""


@attrs.define(eq=False)
class _Batch:
    partition: int
    records: Sequence[Record]
    values: Sequence[str]
    data: bytearray


@attrs.define(eq=False, kw_only=True)
class Maker:
    """Makes records that differ in every property, and records that they are about to be sent.

    `keys_count`: number of keys of a partition, of which some are deleted; None gives each value its own key. `may_go`:
    they may be aborted, and then be removed by compaction. Records with another `order` may come in any order.
    """

    name: str
    topic: Topic
    history: History
    random: Random
    padding_max_bytes: int = PADDING_MAX_BYTES
    keys_count: int | None = None
    may_go: bool = False
    order: int = attrs.field(default=0, init=False)
    _number: int = attrs.field(default=0, init=False)

    def make(self, partition: int) -> tuple[list[Record], list[str]]:
        keys: dict[str, str | None] = {}  # of each value
        for _ in range(self.random.randint(1, BATCH_RECORDS_MAX_COUNT)):
            value = f"{self.name}:{self._number}"
            keys[value] = None if self.keys_count is None else f"key{self.random.randrange(self.keys_count)}"
            self._number += 1
        padding_bytes = self.random.randint(0, self.padding_max_bytes)
        records = [self._record(value, shared, padding_bytes) for value, shared in keys.items()]
        where = self.topic.partition_name(partition)
        for (value, shared), record in zip(keys.items(), records, strict=True):
            key = value if shared is None and self.may_go else shared
            who = f"{self.name}/{self.order}" if self.order else self.name
            self.history.sent(who, where, value, key=key, content=content_of(record), may_go=self.may_go)
        return records, list(keys)

    def _record(self, value: str, shared_key: str | None, padding_bytes: int) -> Record:
        chance = zlib.crc32(value.encode())  # what a record is like does not change what else happens
        is_tombstone = shared_key is not None and chance % 1_000 < 1_000 * TOMBSTONE_PROBABILITY
        now_ms = time.time_ns() // 1_000_000  # what is older than the retention would be deleted
        headers: list[tuple[str, bytes | None]] = [("n", None)] * (0, 0, 1, 2)[chance // 1_000 % 4]
        return Record(
            key=(shared_key or value).encode(),
            value=None if is_tombstone else encode_value(value, padding_bytes),
            timestamp_ms=now_ms - chance // 4_000 % (CLOCK_SKEW_MAX_MS + 1),
            headers=[*headers, (VALUE_HEADER, value.encode())] if is_tombstone else headers,
        )


@attrs.define(eq=False, kw_only=True)
class _Producer:
    """Sends batches of a few records to random partitions until `stopping`; `partitions` limits the partitions."""

    name: str
    topic: Topic
    connect: Connect
    history: History
    random: Random
    stopping: trio.Event
    pause_max_seconds: float = PAUSE_MAX_SECONDS
    padding_max_bytes: int = PADDING_MAX_BYTES
    keys_count: int | None = None
    partitions: Sequence[int] | None = None
    _maker: Maker = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._maker = Maker(
            name=self.name,
            topic=self.topic,
            history=self.history,
            random=self.random,
            padding_max_bytes=self.padding_max_bytes,
            keys_count=self.keys_count,
        )

    def _choose_partition(self) -> int:
        partitions = range(self.topic.partition_count) if self.partitions is None else self.partitions
        return partitions[self.random.randrange(len(partitions))]


@attrs.define(eq=False, kw_only=True)
class IdempotentProducer(_Producer):
    """Sends all unanswered batches again, also after `stopping`.

    `connect_for_id` connects to the broker that gives the producer id. From version BY_TOPIC_ID on it names its topic
    by id, so that a later topic of the same name can't get its records.

    With `begins_anew` it takes a new producer id after a refusal for a lost predecessor, as a client does whose records
    were lost; otherwise that is an error. `checks_behind` is off where a test refuses single batches itself.
    """

    checks_behind: bool = True
    begins_anew: bool = False
    connect_for_id: Connect | None = None
    version: int | None = None  # of Produce
    acknowledged_count: int = attrs.field(default=0, init=False)  # batches
    _stamps: dict[int, ProducerStamp] = attrs.field(factory=dict, init=False)  # by partition, once it has begun anew
    _stamp: ProducerStamp | None = attrs.field(default=None, init=False)
    _sequences: dict[int, int] = attrs.field(factory=dict, init=False)
    _unacknowledged: deque[_Batch] = attrs.field(factory=deque, init=False)
    _lost_in: set[int] = attrs.field(factory=set, init=False)  # partitions that must be begun anew

    async def run(self) -> None:
        await reconnecting(
            self.connect, self._use, while_true=lambda: bool(self._unacknowledged) or not self.stopping.is_set()
        )

    async def _use(self, connection: Connection) -> None:
        if self._stamp is None:
            self._stamp = await self._first_stamp(connection)
        while self._lost_in:
            await self._begin_anew(connection, min(self._lost_in))
        again = deque(self._unacknowledged)
        in_flight: deque[tuple[_Batch, Reply[ProduceResponse]]] = deque()
        while True:
            while len(in_flight) < MAX_IN_FLIGHT and (again or not self.stopping.is_set()):
                batch = again.popleft() if again else self._make()
                request = _request(self.topic, batch.partition, batch.data)
                in_flight.append((batch, await connection.send(request, ProduceResponse, version=self.version)))
                if self.random.random() < 0.5:
                    break
            if not in_flight:
                return
            batch, reply = in_flight.popleft()
            response = await reply.wait()
            if not self._take(batch, response):
                if self.checks_behind and _only(response).error_code == error_codes.NOT_LEADER_OR_FOLLOWER:
                    await self._check_behind(batch, in_flight)
                await trio.sleep(
                    self.random.uniform(0, RETRY_MAX_SECONDS)
                )  # or it would ask without end at one instant
                return
            await trio.sleep(self.random.uniform(0, self.pause_max_seconds))

    async def _check_behind(self, refused: _Batch, in_flight: Iterable[tuple[_Batch, Reply[ProduceResponse]]]) -> None:
        """Check that later batches in flight may be sent again, too.

        librdkafka takes a new epoch if one is out of order, and resends in it the batches of other partitions.
        """
        for batch, reply in in_flight:
            answer = _only(await reply.wait())
            if batch.partition == refused.partition and answer.error_code == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER:
                where = self.topic.partition_name(batch.partition)
                raise OutOfSequence(f"{batch.values[0]} in {where}, as the one before must come again")

    async def _first_stamp(self, connection: Connection) -> ProducerStamp:
        if self.connect_for_id is None:
            return await _new_stamp(connection)
        async with aclosing(await self.connect_for_id()) as other:
            return await _new_stamp(other)

    async def _begin_anew(self, connection: Connection, partition: int) -> None:
        self._stamps[partition] = await _new_stamp(connection)
        self._sequences[partition] = 0
        for batch in self._unacknowledged:
            if batch.partition == partition:
                batch.data = self._stamped(partition, batch.records)
                self.history.sent_anew(self.topic.partition_name(partition), batch.values)
        self._lost_in.remove(partition)

    def _make(self) -> _Batch:
        partition = self._choose_partition()
        records, values = self._maker.make(partition)
        batch = _Batch(partition, records, values, self._stamped(partition, records))
        self._unacknowledged.append(batch)
        return batch

    def _stamped(self, partition: int, records: Sequence[Record]) -> bytearray:
        stamp = self._stamps.get(partition, self._stamp)
        assert stamp is not None
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + len(records)
        return build_batch(records, producer=attrs.evolve(stamp, base_sequence=sequence))

    def _take(self, batch: _Batch, response: ProduceResponse) -> bool:
        """Record an answer; False if all unanswered batches must be sent again, on a new connection."""
        answer = _only(response)
        if answer.error_code in error_codes.RETRIABLE:
            return False
        where = self.topic.partition_name(batch.partition)
        if answer.error_code in _WITHOUT_PREDECESSOR:
            if not self.begins_anew:
                raise OutOfSequence(f"{batch.values[0]} in {where}: {answer.error_message}")
            self._lost_in.add(batch.partition)
            return False
        if answer.error_code:
            raise KafkaError(answer.error_code, answer.error_message or where)
        self._unacknowledged.remove(batch)
        self.acknowledged_count += 1
        for index, value in enumerate(batch.values):
            self.history.acknowledged(where, value, answer.base_offset + index)
        return True


@attrs.define(eq=False, kw_only=True)
class PlainProducer(_Producer):
    """Sends one batch after the other without a producer id, and never again, so that no record comes twice."""

    async def run(self) -> None:
        await reconnecting(self.connect, self._use, while_true=lambda: not self.stopping.is_set())

    async def _use(self, connection: Connection) -> None:
        self._maker.order += 1  # what was given up may be written yet, behind what is sent by this connection
        while not self.stopping.is_set():
            partition = self._choose_partition()
            records, values = self._maker.make(partition)
            answer = _only(
                await connection.request(_request(self.topic, partition, build_batch(records)), ProduceResponse)
            )
            where = self.topic.partition_name(partition)
            if answer.error_code in error_codes.RETRIABLE:
                raise BrokerUnavailable(where)
            if answer.error_code:
                raise KafkaError(answer.error_code, answer.error_message or where)
            for index, value in enumerate(values):
                self.history.acknowledged(where, value, answer.base_offset + index)
            await trio.sleep(self.random.uniform(0, self.pause_max_seconds))


async def _new_stamp(connection: Connection) -> ProducerStamp:
    asked = InitProducerIdRequest(transaction_timeout_ms=1000)
    given = await connection.request(asked, InitProducerIdResponse)
    if given.error_code in error_codes.RETRIABLE:
        raise BrokerUnavailable("no producer id now")
    if given.error_code:
        raise KafkaError(given.error_code)
    return ProducerStamp(given.producer_id, given.producer_epoch, 0)


def _request(topic: Topic, partition: int, batch: bytearray) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=memoryview(batch))
    return ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=[data])],
    )


def _only(response: ProduceResponse) -> PartitionProduceResponse:
    return response.responses[0].partition_responses[0]
