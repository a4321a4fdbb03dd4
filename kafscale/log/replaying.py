"""Replay a journal: put the batches that no segment has back into the tails of partitions.

Used at a start and when partitions come to a serving broker. Clients cannot reach these partitions yet, and their
segments have been restored. Does not wait for the pool: replayed batches stay in the log until flushed or fetched.

Late segments: a suspended broker of an earlier epoch may have uploaded a segment after its successor acknowledged
other records at the same offsets. Then the journal's entries win: they are postponed, the partition is restored again
without that segment, and the entries are read from the journal again and replayed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import attrs

from kafscale.errors import DamagedObject
from kafscale.formats.manifest import PartitionId
from kafscale.formats.segment import EpochStart
from kafscale.formats.wal_entries import WalEntry, WalFile
from kafscale.log.partition.chunks import ChunkPool
from kafscale.log.partition.partition import Partition, Placed
from kafscale.log.wal.journal import Handle, Journal, KeptAside
from kafscale.wire.batch_header import parse_header

REPLAYED_POOL_FRACTION = 0.5  # of the pool for what the log in the bucket held; the rest is for new batches

RestoreBefore = Callable[[PartitionId, EpochStart], Awaitable[None]]


@attrs.frozen(eq=False, repr=False)
class _Place:
    entry: WalEntry  # without its data
    size_bytes: int


@attrs.define(eq=False, repr=False)
class PostponedEntries:
    """Entries that are replayed later, by partition and in order. Each is pending in its file until then."""

    _places: dict[PartitionId, list[_Place]] = attrs.field(factory=dict, init=False)
    _pending: Counter[WalFile] = attrs.field(factory=Counter, init=False)  # those that are not replayed yet

    def __contains__(self, partition_id: PartitionId) -> bool:
        return partition_id in self._places

    def add(self, entry: WalEntry) -> None:
        """Put this one off; all that follow of its partition are to be put off, too."""
        place = _Place(_with_data(entry, b""), len(entry.data))
        self._places.setdefault((entry.topic_id, entry.partition), []).append(place)
        assert entry.file is not None
        self._pending[entry.file] += 1

    async def replay(
        self,
        journal: Journal,
        restore: Callable[[PartitionId, EpochStart], Awaitable[None]],
        handle: Handle,
    ) -> None:
        """Restore each partition as it is below its first entry here, and hand all of them to `handle`.

        Raises what `restore` does, StorageFailed, DamagedObject.
        """
        places, self._places = self._places, {}
        for partition_id, postponed in places.items():
            first = postponed[0].entry
            await restore(partition_id, EpochStart(first.leader_epoch, first.base_offset))
            for place in postponed:
                file = place.entry.file
                assert file is not None
                data = await journal.read(file, [(place.entry.position, place.size_bytes)])
                is_needed = handle(_with_data(place.entry, data))
                self._pending[file] -= 1
                if not is_needed:
                    journal.release(file)

    def give_up(self, journal: Journal) -> None:
        """Let go of those that are not replayed, as the replay has failed."""
        self._places.clear()
        for file, count in self._pending.items():
            journal.release(file, count)
        self._pending.clear()


def _with_data(entry: WalEntry, data: bytes) -> WalEntry:
    other = WalEntry(entry.topic_id, entry.partition, entry.leader_epoch, entry.base_offset, data)
    other.file, other.position, other.sequence = entry.file, entry.position, entry.sequence
    return other


@attrs.frozen(kw_only=True)
class NotOpen:
    """Questions about an entry whose partition is not open here.

    `is_lost` tells whether another broker has written its offsets since. `is_unknown` tells whether the metadata knows
    neither its partition nor that its topic was deleted; it is asked of a log on disk only, as a log in the bucket has
    the metadata, too. Both are kept for the user. Of all others the bucket has everything, or their topic was deleted.
    """

    is_lost: Callable[[WalEntry], bool] = lambda entry: False
    is_unknown: Callable[[WalEntry], bool] = lambda entry: False


@attrs.define(eq=False, kw_only=True, repr=False)
class Replay:
    """One replay: hand entries in order to `handle`, then `finish`.

    `restore_before` restores a partition as it was before an epoch that began at an offset. `kept` counts batches that
    were acknowledged and can't be put back.
    """

    journal: Journal
    pool: ChunkPool
    partitions: Mapping[PartitionId, Partition]
    restore_before: RestoreBefore
    kept: KeptAside = attrs.field(factory=KeptAside)
    not_open: NotOpen = attrs.field(factory=NotOpen)
    _postponed: PostponedEntries = attrs.field(factory=PostponedEntries, init=False)
    _now_ms: int = attrs.field(factory=lambda: time.time_ns() // 1_000_000, init=False)

    def handle(self, entry: WalEntry) -> bool:
        """Put an entry back into its partition's tail; False if it is in the bucket, or its partition is none of these.

        Raises DamagedObject if the bucket ends before it.
        """
        partition = self.partitions.get((entry.topic_id, entry.partition))
        if partition is None:
            if self.journal.is_local and self.not_open.is_unknown(entry):
                self.kept.add_unknown(entry)
            elif self.not_open.is_lost(entry):
                self.kept.add_superseded(entry)
            return False
        if (entry.topic_id, entry.partition) in self._postponed or partition.is_superseded_by(entry):
            self._postponed.add(entry)
            return True
        if partition.has_superseded(entry):
            self.kept.add_superseded(entry)
            return False
        if entry.base_offset < partition.next_offset:
            return False
        if partition.next_offset < entry.base_offset and (
            self.journal.has_lost_entries or entry.base_offset <= partition.lost_offset
        ):
            partition.skip_lost(entry.base_offset)
        missing_before = max(partition.log_start_offset, partition.lost_before)
        if not partition.tail.batches and partition.next_offset < entry.base_offset <= missing_before:
            partition.skip_to(entry.base_offset)
        if entry.base_offset > partition.next_offset:
            raise DamagedObject(
                f"{partition}: the write-ahead log goes on at offset {entry.base_offset}, and the bucket ends before "
                f"{partition.next_offset}; objects are missing from the bucket: bring back those whose keys begin with "
                f"{partition.objects_prefix}, or start with an empty --data-dir to go on without what only this "
                "write-ahead log holds"
            )
        data = memoryview(entry.data)
        partition.replay(entry, parse_header(data), self._now_ms, placed=self._place(partition, data))
        return True

    def _place(self, partition: Partition, data: memoryview) -> Placed | None:
        """Keep what was just read from the bucket, which costs a GET a batch to read again, while the pool has room."""
        # A broker with a larger pool may have taken what this one never has room for.
        room_bytes = self.pool.size_bytes * REPLAYED_POOL_FRACTION - self.pool.used_bytes
        if self.journal.is_local or len(data) > room_bytes:
            return None
        return partition.place_nowait(data)

    async def finish(self) -> None:
        """Take what had to be put off. Raises DamagedObject, StorageFailed, StoreError."""
        await self._postponed.replay(self.journal, self.restore_before, self.handle)

    def give_up(self) -> None:
        """Release the postponed entries after a failed replay, as the journal is used on."""
        self._postponed.give_up(self.journal)
