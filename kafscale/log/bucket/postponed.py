"""Entries of the write-ahead log that are newer than what the bucket has at their offsets: put off until that is out.

A broker of an earlier epoch that was suspended may have written a segment behind what it had acknowledged in time,
while this one had acknowledged other records there and not flushed them yet. A start finds that segment, and nothing
else at these offsets, until the replay comes upon the entries. They win: the partition is restored again without what
an earlier epoch has from there on, and then they are replayed.

Their data is not kept meanwhile, but read again from the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import attrs

from kafscale.formats.manifest import PartitionId
from kafscale.formats.segment import EpochStart
from kafscale.formats.wal_entries import WalEntry, WalFile
from kafscale.log.wal.journal import Handle, Journal


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
            for each in postponed:
                file = each.entry.file
                assert file is not None
                data = await journal.read(file, [(each.entry.position, each.size_bytes)])
                is_needed = handle(_with_data(each.entry, data))
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
