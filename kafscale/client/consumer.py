"""Reading partitions from positions on, without a group: what a tool or a test needs.

Each poll is one Fetch to each leader, without a session. A position moves past whole batches, so offsets that a
compacted batch no longer has are stepped over.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from kafscale.client.client import Client
from kafscale.client.connection import Connection, Reply
from kafscale.client.isolation import AbortedBatches, AbortedFrom, IsolationLevel
from kafscale.client.retrying import STALE_LEADER, WORTH_ANOTHER, Attempts
from kafscale.login.failures import check
from kafscale.wire import error_codes
from kafscale.wire.messages.records import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from kafscale.wire.records import Record, iterate_records, parse_header, whole_batches

MAX_FETCH_BYTES = 50 << 20  # Kafka's consumer: fetch.max.bytes, 50 MiB
MAX_PARTITION_BYTES = 1 << 20  # Kafka's consumer: max.partition.fetch.bytes, 1 MiB

_STALE = STALE_LEADER | {error_codes.UNKNOWN_TOPIC_ID, error_codes.INCONSISTENT_TOPIC_ID}
_WORTH_ANOTHER = WORTH_ANOTHER | _STALE


@attrs.define
class Consumed:
    """A record and the partition that it came from."""

    partition: int
    record: Record


@attrs.define(eq=False, kw_only=True, repr=False)
class Consumer:
    """Reads one topic. `positions` is the next offset to read by partition; `ends` the last seen high watermarks.

    At READ_COMMITTED records of transactions that are open, or were aborted, are left out.
    """

    client: Client
    topic: str
    positions: dict[int, int]
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED  # Kafka's consumer: isolation.level
    ends: dict[int, int] = attrs.field(factory=dict, init=False)
    _attempts: Attempts | None = attrs.field(default=None, init=False)  # while a partition can't be read

    async def poll(self, max_wait_ms: int = 500) -> list[Consumed]:
        """Records from the positions on, which move past them; empty if nothing came in time.

        Raises KafkaError (OFFSET_OUT_OF_RANGE for a position that the log does not have), BrokerUnavailable.
        """
        replies = [await self._ask(leader, indexes, max_wait_ms) for leader, indexes in (await self._leaders()).items()]
        consumed: list[Consumed] = []
        refused: PartitionData | None = None
        for reply in replies:
            response = await reply.wait()
            check(response.error_code, f"topic '{self.topic}'")
            for answer in _partitions(response.responses):
                if answer.error_code in _WORTH_ANOTHER:
                    refused = answer
                consumed += self._take(answer)
        await self._wait_for_another(refused, has_records=bool(consumed))
        return consumed

    async def _wait_for_another(self, refused: PartitionData | None, *, has_records: bool) -> None:
        """Wait before the next poll if a partition can't be read just now. Raises KafkaError once that lasts long."""
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
            FetchPartition(partition=each, fetch_offset=self.positions[each], partition_max_bytes=MAX_PARTITION_BYTES)
            for each in indexes
        ]
        topic_id = (await self.client.topic(self.topic)).topic_id
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=MAX_FETCH_BYTES,
            isolation_level=self.isolation_level,
            topics=[FetchTopic(topic=self.topic, topic_id=topic_id, partitions=partitions)],
        )
        return await leader.send(request, FetchResponse)

    def _take(self, answer: PartitionData) -> list[Consumed]:
        partition = answer.partition_index
        if answer.error_code in _STALE:
            self.client.forget(self.topic)
        if answer.error_code in _WORTH_ANOTHER:
            return []
        self._check(answer)
        self.ends[partition] = answer.high_watermark
        aborted = AbortedBatches.of(
            AbortedFrom(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()
        )
        consumed = []
        records = answer.records or b""
        assert isinstance(records, bytes | memoryview), "what was decoded is one buffer"
        for batch in whole_batches(memoryview(records)):
            header = parse_header(batch)
            if not aborted.have(header, batch) and not header.is_control:
                position = self.positions[partition]
                consumed += [Consumed(partition, each) for each in iterate_records(batch) if each.offset >= position]
            self.positions[partition] = header.next_offset
        return consumed

    def _check(self, answer: PartitionData) -> None:
        partition = answer.partition_index
        check(answer.error_code, f"offset {self.positions[partition]} of partition {partition} of topic '{self.topic}'")


def _partitions(topics: list[FetchableTopicResponse]) -> Iterator[PartitionData]:
    for topic in topics:
        yield from topic.partitions
