"""`__consumer_offsets` in memory: what a coordinator writes, held back or lost on purpose, and read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
import trio

from kafscale.cluster.coordinator.entries import Appended
from kafscale.cluster.coordinator.loading import InternalBatch, SkippedRecords, apply_batch
from kafscale.cluster.groups.common.log_records import CoordinatorRecord, read_record
from kafscale.cluster.groups.coordinator import GroupCoordinator
from kafscale.log.wal.journal import Round
from kafscale.wire.batch_header import parse_header
from kafscale.wire.internal_topics.consumer_offsets import GroupMetadataKey, OffsetCommitKey
from kafscale.wire.records import Record, build_batch, iterate_records


@attrs.define(eq=False)
class GatedRound(Round):
    """A round that is done for each task that waits for it once a gate is open."""

    log: MemoryOffsetsLog
    gate: trio.Event
    partition: int
    batch: bytearray

    async def wait(self) -> None:
        await self.gate.wait()
        if not self.done:
            self.succeed()
            self.log.keep(self.partition, self.batch)


@attrs.define(eq=False, kw_only=True)
class MemoryOffsetsLog:
    """The partitions of the topic. What is durable outlasts the coordinator.

    `gate`, while it is an event that has not happened, holds back what is written; `failure`, while it is set, is
    raised by every write; while it is `full` there is no room.
    """

    partition_count: int = 4
    gate: trio.Event | None = None
    failure: Exception | None = None
    full: bool = False
    has_topic: bool = False  # it is made when a partition is led first
    batches: dict[int, list[bytearray]] = attrs.field(factory=dict, init=False)
    _next_offsets: dict[int, int] = attrs.field(factory=dict, init=False)
    _room: trio.Event = attrs.field(factory=trio.Event, init=False)

    def append(self, partition: int, records: Sequence[Record]) -> Appended | None:
        if self.failure is not None:
            raise self.failure
        if self.full:
            return None
        base_offset = self._next_offsets.get(partition, 0)
        self._next_offsets[partition] = base_offset + len(records)
        batch = build_batch(records, base_offset=base_offset)
        if self.gate is None or self.gate.is_set():
            self.keep(partition, batch)
            return Appended(None, base_offset)
        return Appended(GatedRound(self, self.gate, partition, batch), base_offset)

    async def wait_for_room(self, partition: int, records: Sequence[Record]) -> None:
        await self._room.wait()

    def make_room(self) -> None:
        """The disk is not full any more."""
        self.full = False
        self._room.set()
        self._room = trio.Event()

    def keep(self, partition: int, batch: bytearray) -> None:
        """Keep a batch, which is durable."""
        self.batches.setdefault(partition, []).append(batch)

    async def wait_loaded(self) -> None:
        """Wait for nothing, as a leadership that has read everything."""

    @property
    def batch_count(self) -> int:
        return sum(map(len, self.batches.values()))

    def read(self, partition: int) -> Iterator[InternalBatch]:
        """Yield what is durable of a partition."""
        for batch in self.batches.get(partition, ()):
            view = memoryview(batch)
            yield InternalBatch(parse_header(view), list(iterate_records(view)))

    def load(self, coordinator: GroupCoordinator, *partitions: int) -> None:
        """Lead these partitions, or all, in a coordinator, and load them."""
        for partition in partitions or range(self.partition_count):
            self.begin_loading(coordinator, partition)()

    def begin_loading(
        self, coordinator: GroupCoordinator, partition: int, *, leader_epoch: int = 1
    ) -> Callable[[], bool]:
        """Lead a partition in a coordinator; the result loads it to its end."""
        self.has_topic = True
        state = coordinator.led.begin_loading(partition, leader_epoch)

        def finish() -> bool:
            for batch in self.read(partition):
                apply_batch(state, batch, SkippedRecords())
            return coordinator.led.finish_loading(state)

        return finish

    def known_count(self) -> int:
        """Return how many partitions a broker knows the topic to have."""
        return self.partition_count if self.has_topic else 0

    def live(self) -> Sequence[CoordinatorRecord]:
        """Return what is left when all has been compacted, and tombstones are gone, in order of the keys."""
        latest: dict[bytes, Record] = {}
        for partition in self.batches:
            for batch in self.read(partition):
                latest |= {record.key: record for record in batch.records if record.key is not None}
        changes = [read_record(latest[key]) for key in sorted(latest) if latest[key].value is not None]
        return [change for change in changes if change is not None]

    def offsets(self) -> Mapping[tuple[str, str, int], int]:
        """Return the committed offsets that are durable, by group, topic and partition."""
        return {
            (change.key.group_id, change.key.topic, change.key.partition): change.value.offset
            for change in self.live()
            if isinstance(change.key, OffsetCommitKey)
        }

    def groups(self) -> Sequence[str]:
        """Return the ids of the classic groups that have a durable record."""
        return [change.key.group_id for change in self.live() if isinstance(change.key, GroupMetadataKey)]
