"""Reads partitions from given positions, without a group.

Each poll sends one Fetch to each leader, without a session. A position moves past whole batches, also over offsets lost
to compaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

import attrs

from kafscale.buffers import Buffer
from kafscale.client.client import Client
from kafscale.client.connection import DEFAULT_TIMEOUT_SECONDS, Connection, Reply
from kafscale.client.retrying import STALE_LEADER, WORTH_ANOTHER, Attempts, retried
from kafscale.login.failures import check
from kafscale.wire import error_codes
from kafscale.wire.batch_header import BatchHeader, parse_header, whole_batches
from kafscale.wire.control_records import parse_marker
from kafscale.wire.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    PartitionData,
)
from kafscale.wire.records import Record, iterate_records

MAX_FETCH_BYTES = 50 << 20  # Kafka's consumer: fetch.max.bytes, 50 MiB
MAX_PARTITION_BYTES = 1 << 20  # Kafka's consumer: max.partition.fetch.bytes, 1 MiB

LATEST = -1
EARLIEST = -2
REMOTE_TIMEOUT_MS = int(DEFAULT_TIMEOUT_SECONDS * 1000)  # for a broker that looks into remote storage

_STALE = STALE_LEADER | {error_codes.UNKNOWN_TOPIC_ID, error_codes.INCONSISTENT_TOPIC_ID}
_WORTH_ANOTHER = WORTH_ANOTHER | _STALE


class IsolationLevel(IntEnum):
    """Treatment of open and aborted transactions; the value is the protocol's."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@attrs.frozen
class AbortedFrom:
    """An aborted transaction of this producer begins at this offset."""

    producer_id: int
    first_offset: int


@attrs.define(eq=False, repr=False)
class AbortedFilter:
    """Tells which batches of a read_committed answer were aborted (KIP-98). Ask it for each batch, in order."""

    _pending: list[AbortedFrom]  # the first one is last
    _producer_ids: set[int] = attrs.field(factory=set, init=False)  # of those that have no marker so far

    @classmethod
    def of(cls, aborted: Iterable[AbortedFrom]) -> AbortedFilter:
        return cls(sorted(aborted, key=lambda each: -each.first_offset))

    def have(self, header: BatchHeader, batch: Buffer) -> bool:
        """Tell whether the next batch was aborted; a marker was not. Raises CorruptBatch (of a marker)."""
        while self._pending and self._pending[-1].first_offset <= header.last_offset:
            self._producer_ids.add(self._pending.pop().producer_id)
        if header.producer_id not in self._producer_ids:
            return False
        if header.is_control:
            marker = parse_marker(memoryview(batch), header)
            if marker is not None and not marker.is_commit:
                self._producer_ids.discard(header.producer_id)
            return False
        return header.is_transactional


@attrs.define
class Consumed:
    partition: int
    record: Record


@attrs.frozen(kw_only=True)
class FetchedBatch:
    """A whole batch of any kind. Its records before `position` were not asked for.

    `is_aborted` is known at READ_COMMITTED only.
    """

    partition: int
    position: int
    header: BatchHeader
    data: memoryview
    is_aborted: bool

    @property
    def is_for_consumers(self) -> bool:
        return not self.is_aborted and not self.header.is_control


@attrs.define(eq=False, kw_only=True, repr=False)
class Consumer:
    """Reads one topic. `positions` has the next offset by partition, `ends` the last seen high watermarks.

    At READ_COMMITTED, records of open and aborted transactions are skipped.
    """

    client: Client
    topic: str
    positions: dict[int, int]
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED  # Kafka's consumer: isolation.level
    max_bytes: int = MAX_FETCH_BYTES
    ends: dict[int, int] = attrs.field(factory=dict, init=False)
    _attempts: Attempts | None = attrs.field(default=None, init=False)  # while a partition can't be read

    async def poll(self, max_wait_ms: int = 500) -> list[Consumed]:
        """Return records, and move the positions. Raises KafkaError (OFFSET_OUT_OF_RANGE), BrokerUnavailable."""
        return [
            Consumed(batch.partition, record)
            for batch in await self.poll_batches(max_wait_ms)
            if batch.is_for_consumers
            for record in iterate_records(batch.data)
            if record.offset >= batch.position
        ]

    async def poll_batches(self, max_wait_ms: int = 500) -> list[FetchedBatch]:
        """Return batches, with markers and aborted ones, and move the positions. Raises as `poll`."""
        replies = [await self._ask(leader, indexes, max_wait_ms) for leader, indexes in (await self._leaders()).items()]
        fetched: list[FetchedBatch] = []
        refused: PartitionData | None = None
        for reply in replies:
            response = await reply.wait()
            check(response.error_code, f"topic '{self.topic}'")
            for answer in (part for found in response.responses for part in found.partitions):
                if answer.error_code in _WORTH_ANOTHER:
                    refused = answer
                fetched += self._take(answer)
        await self._wait_for_another(refused, has_records=any(batch.is_for_consumers for batch in fetched))
        return fetched

    async def _wait_for_another(self, refused: PartitionData | None, *, has_records: bool) -> None:
        """Wait before the next poll if a partition can't be read. Raises KafkaError once that lasts long."""
        if refused is None:
            self._attempts = None
            return
        self._attempts = self._attempts or Attempts()
        if not await self._attempts.another() and not has_records:
            self._check(refused)

    async def _leaders(self) -> dict[Connection, list[int]]:
        leaders: dict[Connection, list[int]] = {}
        for partition in self.positions:
            leaders.setdefault(await self.client.leader(self.topic, partition), []).append(partition)
        return leaders

    async def _ask(self, leader: Connection, indexes: list[int], max_wait_ms: int) -> Reply[FetchResponse]:
        partitions = [
            FetchPartition(partition=index, fetch_offset=self.positions[index], partition_max_bytes=MAX_PARTITION_BYTES)
            for index in indexes
        ]
        topic_id = (await self.client.topic(self.topic)).topic_id
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=self.max_bytes,
            isolation_level=self.isolation_level,
            topics=[FetchTopic(topic=self.topic, topic_id=topic_id, partitions=partitions)],
        )
        return await leader.send(request, FetchResponse)

    def _take(self, answer: PartitionData) -> list[FetchedBatch]:
        partition = answer.partition_index
        if answer.error_code in _STALE:
            self.client.forget(self.topic)
        if answer.error_code in _WORTH_ANOTHER:
            return []
        self._check(answer)
        self.ends[partition] = answer.high_watermark
        aborted = AbortedFilter.of(
            AbortedFrom(transaction.producer_id, transaction.first_offset)
            for transaction in answer.aborted_transactions or ()
        )
        fetched = []
        records = answer.records or b""
        assert isinstance(records, bytes | memoryview), "what was decoded is one buffer"
        for data in whole_batches(memoryview(records)):
            header = parse_header(data)
            batch = FetchedBatch(
                partition=partition,
                position=self.positions[partition],
                header=header,
                data=data,
                is_aborted=aborted.have(header, data),
            )
            fetched.append(batch)
            self.positions[partition] = header.next_offset
        return fetched

    def _check(self, answer: PartitionData) -> None:
        partition = answer.partition_index
        check(answer.error_code, f"offset {self.positions[partition]} of partition {partition} of topic '{self.topic}'")


@retried
async def list_offsets(
    client: Client,
    topic: str,
    timestamps: Mapping[int, int],
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[int, int]:
    """Return the first offset not older than a timestamp (milliseconds, LATEST or EARLIEST) in each partition, else its
    end; at READ_COMMITTED that is the last stable offset. Raises KafkaError, BrokerUnavailable.
    """
    by_leader: dict[Connection, list[ListOffsetsPartition]] = {}
    for partition, timestamp in timestamps.items():
        wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        by_leader.setdefault(await client.leader(topic, partition), []).append(wanted)
    offsets = {}
    for leader, partitions in by_leader.items():
        topics = [ListOffsetsTopic(name=topic, partitions=partitions)]
        request = ListOffsetsRequest(topics=topics, timeout_ms=REMOTE_TIMEOUT_MS, isolation_level=int(isolation_level))
        response = await leader.request(request, ListOffsetsResponse)
        for answer in (part for found in response.topics for part in found.partitions):
            if answer.error_code in STALE_LEADER:
                client.forget(topic)
            check(answer.error_code, f"partition {answer.partition_index} of topic '{topic}'")
            offsets[answer.partition_index] = answer.offset
    newer_than_all = [partition for partition, offset in offsets.items() if offset < 0]
    if newer_than_all:
        offsets |= await list_offsets(client, topic, dict.fromkeys(newer_than_all, LATEST), isolation_level)
    return offsets
