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
from kafscale.log.wal.journal import Journal, KeptAside
from kafscale.wire.batch_header import parse_header

REPLAYED_POOL_FRACTION = 0.5  # of the pool for what the log in the bucket held; the rest is for new batches

RestoreBefore = Callable[[PartitionId, EpochStart], Awaitable[None]]


@attrs.frozen(kw_only=True)
class NotOpen:
    """Questions about an entry whose partition is not open here. If an answer is yes, the entry is kept for the user.

    `is_lost`: another broker has written its offsets since. `is_unknown`: the metadata knows neither its partition nor
    the deletion of its topic; asked of a local log only, since a log in the bucket has the metadata, too.
    """

    is_lost: Callable[[WalEntry], bool] = lambda entry: False
    is_unknown: Callable[[WalEntry], bool] = lambda entry: False


@attrs.define(eq=False, kw_only=True, repr=False)
class Replay:
    """One replay: hand entries in order to `handle`, then `finish`.

    `restore_before` restores a partition as before an epoch that began at an offset. `kept` counts acknowledged batches
    that can't be put back.
    """

    journal: Journal
    pool: ChunkPool
    partitions: Mapping[PartitionId, Partition]
    restore_before: RestoreBefore
    kept: KeptAside = attrs.field(factory=KeptAside)
    not_open: NotOpen = attrs.field(factory=NotOpen)
    _postponed: dict[PartitionId, list[tuple[WalEntry, int]]] = attrs.field(factory=dict, init=False)  # without data
    _pending: Counter[WalFile] = attrs.field(factory=Counter, init=False)  # postponed entries, each pending in its file
    _now_ms: int = attrs.field(factory=lambda: time.time_ns() // 1_000_000, init=False)

    def handle(self, entry: WalEntry) -> bool:
        """Put an entry into its partition's tail; False if that is not needed. Raises DamagedObject for a gap."""
        partition = self.partitions.get((entry.topic_id, entry.partition))
        if partition is None:
            if self.journal.is_local and self.not_open.is_unknown(entry):
                self.kept.add_unknown(entry)
            elif self.not_open.is_lost(entry):
                self.kept.add_superseded(entry)
            return False
        if (entry.topic_id, entry.partition) in self._postponed or partition.is_superseded_by(entry):
            assert entry.file is not None
            self._postponed.setdefault((entry.topic_id, entry.partition), []).append(
                (_with_data(entry, b""), len(entry.data))
            )
            self._pending[entry.file] += 1
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
        """Keep a batch from the bucket in memory while the pool has room: reading it again costs a GET."""
        # A broker with a larger pool may have taken what this one never has room for.
        room_bytes = self.pool.size_bytes * REPLAYED_POOL_FRACTION - self.pool.used_bytes
        if self.journal.is_local or len(data) > room_bytes:
            return None
        return partition.place_nowait(data)

    async def finish(self) -> None:
        """Restore the partitions of postponed entries and replay these.

        Raises DamagedObject, StorageFailed, StoreError.
        """
        postponed, self._postponed = self._postponed, {}
        for partition_id, entries in postponed.items():
            first = entries[0][0]
            await self.restore_before(partition_id, EpochStart(first.leader_epoch, first.base_offset))
            for entry, size_bytes in entries:
                assert entry.file is not None
                data = await self.journal.read(entry.file, [(entry.position, size_bytes)])
                is_needed = self.handle(_with_data(entry, data))
                self._pending[entry.file] -= 1
                if not is_needed:
                    self.journal.release(entry.file)

    def give_up(self) -> None:
        """Release the postponed entries after a failed replay, as the journal is used on."""
        self._postponed.clear()
        for file, count in self._pending.items():
            self.journal.release(file, count)
        self._pending.clear()


def _with_data(entry: WalEntry, data: bytes) -> WalEntry:
    other = WalEntry(entry.topic_id, entry.partition, entry.leader_epoch, entry.base_offset, data)
    other.file, other.position, other.sequence = entry.file, entry.position, entry.sequence
    return other
