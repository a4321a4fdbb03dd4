"""Reads a bounded part of a topic for a page: records, and what consumers are not shown.

Up to the last stable offset the broker names aborted transactions; behind it those of transactions are undecided. A
`Scan` takes records of several partitions about in order of time, until it has enough or has read enough.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum

import attrs
import trio

from kafscale.client.client import Client
from kafscale.client.consumer import (
    EARLIEST,
    LATEST,
    Consumed,
    Consumer,
    FetchedBatch,
    IsolationLevel,
    list_offsets,
)
from kafscale.errors import KafkaError
from kafscale.wire.control_records import parse_marker
from kafscale.wire.records import Record, iterate_records

FETCH_MAX_BYTES = 4 << 20
FETCH_WAIT_MS = 100
BATCH_MAX_BYTES = 64 << 20  # of one batch, unpacked
FOUND_MAX_BYTES = 32 << 20  # of keys and values that a page has found
THREADS_MAX_COUNT = 4  # that unpack and filter records at a time, of all pages
READ_THREADS = trio.CapacityLimiter(THREADS_MAX_COUNT)


class MessageKind(StrEnum):
    RECORD = ""
    ABORTED = "aborted"
    OPEN = "open transaction"
    COMMIT = "commit marker"
    ABORT = "abort marker"
    CONTROL = "control record"
    UNREADABLE = "unreadable batch"


@attrs.define(kw_only=True)
class TopicMessage(Consumed):
    """A record, or a marker or unreadable batch without one's key and value. `reason` says why it can't be read."""

    kind: MessageKind = MessageKind.RECORD
    reason: str = ""

    @property
    def is_record(self) -> bool:
        return self.kind in (MessageKind.RECORD, MessageKind.ABORTED, MessageKind.OPEN)

    @property
    def is_tombstone(self) -> bool:
        return self.is_record and self.record.value is None

    @property
    def size_bytes(self) -> int:
        return len(self.record.key or b"") + len(self.record.value or b"")

    @property
    def place(self) -> tuple[int, int, int]:
        """Return a key to sort by time, partition and offset."""
        return self.record.timestamp_ms, self.partition, self.record.offset


def messages_of(batch: FetchedBatch, *, is_stable: bool) -> Iterator[TopicMessage]:
    """Iterate over the records of a batch that were asked for, and its marker. A damaged batch becomes a message."""
    header = batch.header
    kind = MessageKind.RECORD
    if batch.is_aborted:
        kind = MessageKind.ABORTED
    elif header.is_transactional and not is_stable:
        kind = MessageKind.OPEN
    position = batch.position
    try:
        if header.is_control:
            marker = parse_marker(batch.data, header)
            kind = (
                MessageKind.CONTROL if marker is None else MessageKind.COMMIT if marker.is_commit else MessageKind.ABORT
            )
        for record in iterate_records(batch.data, max_decompressed_bytes=BATCH_MAX_BYTES):
            if record.offset >= batch.position:
                position = record.offset + 1
                yield TopicMessage(batch.partition, record, kind=kind)
    except KafkaError as exc:
        place = Record(timestamp_ms=header.max_timestamp_ms, offset=position)
        yield TopicMessage(batch.partition, place, kind=MessageKind.UNREADABLE, reason=str(exc))


@attrs.frozen(kw_only=True)
class ReadableEnds:
    """The ends of partitions when a page is made: earliest, last stable and latest offsets."""

    earliest: Mapping[int, int]
    stable: Mapping[int, int]
    latest: Mapping[int, int]

    @classmethod
    async def read(cls, client: Client, topic: str, partitions: Iterable[int]) -> ReadableEnds:
        """Raises KafkaError, BrokerUnavailable."""
        asked = list(partitions)
        return cls(
            earliest=await list_offsets(client, topic, dict.fromkeys(asked, EARLIEST)),
            stable=await list_offsets(client, topic, dict.fromkeys(asked, LATEST), IsolationLevel.READ_COMMITTED),
            latest=await list_offsets(client, topic, dict.fromkeys(asked, LATEST)),
        )

    def within(self, positions: Mapping[int, int]) -> dict[int, int]:
        """Return positions of these partitions, moved between their ends."""
        return {
            partition: min(max(positions[partition], earliest), self.latest[partition])
            for partition, earliest in self.earliest.items()
            if partition in positions
        }


@attrs.frozen(kw_only=True)
class Bounds:
    """Bounds of a scan; it ends at the first that is reached. `found_count` is that of messages to find."""

    found_count: int
    scanned_count: int
    seconds: float


@attrs.define(eq=False, kw_only=True, repr=False)
class Scan:
    """Reads from `positions`, which it moves past all that it has looked at, up to `stops`."""

    client: Client
    topic: str
    positions: dict[int, int]
    stops: Mapping[int, int]
    stable: Mapping[int, int]
    bounds: Bounds
    matches: Callable[[TopicMessage], bool]
    found: list[TopicMessage] = attrs.field(factory=list, init=False)
    scanned_count: int = attrs.field(default=0, init=False)
    _found_bytes: int = attrs.field(default=0, init=False)
    _until: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._until = time.monotonic() + self.bounds.seconds

    @property
    def left_count(self) -> int:
        """Return the distance to the stops in offsets."""
        return sum(max(0, stop - self.positions[partition]) for partition, stop in self.stops.items())

    @property
    def has_enough(self) -> bool:
        return (
            len(self.found) >= self.bounds.found_count
            or self._found_bytes >= FOUND_MAX_BYTES
            or self.scanned_count >= self.bounds.scanned_count
            or time.monotonic() >= self._until
        )

    async def run(self) -> None:
        """Read until a bound or all stops are reached. Raises KafkaError, BrokerUnavailable."""
        stable = {partition: min(stop, self.stable[partition]) for partition, stop in self.stops.items()}
        await self._read(IsolationLevel.READ_COMMITTED, stable)
        await self._read(IsolationLevel.READ_UNCOMMITTED, self.stops)
        if not self.has_enough:  # the rest was removed
            self.positions = {index: max(self.positions[index], stop) for index, stop in self.stops.items()}

    async def _read(self, level: IsolationLevel, stops: Mapping[int, int]) -> None:
        consumer = Consumer(
            client=self.client, topic=self.topic, positions={}, isolation_level=level, max_bytes=FETCH_MAX_BYTES
        )
        while not self.has_enough:
            left = {index: self.positions[index] for index, stop in stops.items() if self.positions[index] < stop}
            consumer.positions = dict(left)
            batches = await consumer.poll_batches(FETCH_WAIT_MS) if left else []
            if not batches and left.keys() <= consumer.ends.keys():  # all have answered that they have no more
                return
            is_stable = level is IsolationLevel.READ_COMMITTED
            await trio.to_thread.run_sync(self._take, batches, stops, is_stable, limiter=READ_THREADS)

    def _take(self, batches: list[FetchedBatch], stops: Mapping[int, int], is_stable: bool) -> None:
        """Look at records about in order of time. It runs in a thread while no other task uses the scan."""
        by_partition: dict[int, list[FetchedBatch]] = {}
        for batch in batches:
            by_partition.setdefault(batch.partition, []).append(batch)
        streams = [self._stream(of_one, stops, is_stable) for of_one in by_partition.values()]
        for message in heapq.merge(*streams, key=_timestamp):
            self.scanned_count += 1
            if self.matches(message):
                self.found.append(message)
                self._found_bytes += message.size_bytes
            self.positions[message.partition] = message.record.offset + 1
            if self.has_enough:
                return
        for batch in batches:
            self.positions[batch.partition] = batch.header.next_offset

    def _stream(self, batches: list[FetchedBatch], stops: Mapping[int, int], is_stable: bool) -> Iterator[TopicMessage]:
        for batch in batches:
            for message in messages_of(batch, is_stable=is_stable):
                if message.record.offset >= stops[message.partition]:
                    return
                yield message


def _timestamp(message: TopicMessage) -> int:
    return message.record.timestamp_ms
