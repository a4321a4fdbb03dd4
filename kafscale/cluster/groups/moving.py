"""Moving groups and committed offsets from the metadata store to `__consumer_offsets`: once, at a start.

    1. what the metadata has is written to the partitions, and whatever else they have is taken back
    2. when all of that is durable, and in the bucket, one transaction deletes it from the metadata and says so there

Until the transaction the metadata counts, afterwards the log. So a crash at any point leaves the one or the other
whole, and the next start does again what was not done: step 1 also removes what an earlier attempt has left, which may
be of groups that an older version has changed or deleted since. Metadata without groups says nothing about the log: it
may be a checkpoint from before the log had any.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Protocol

import trio

from kafscale.cluster.coordinator import InternalBatch
from kafscale.cluster.coordinator.partitioning import coordinator_partition
from kafscale.cluster.groups.former_metadata import MOVED_KEY, PREFIX, FormerGroup, read_groups
from kafscale.cluster.groups.loading import GroupsLoading
from kafscale.cluster.groups.log_records import group_record, offset_record
from kafscale.cluster.metadata.base import MetadataStore, Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.wire.records import Record

PIECE_COUNT = 1000  # records that are written at once, and made in one turn of the event loop

logger = logging.getLogger(__name__)


class Destination(Protocol):
    """`__consumer_offsets`, to be written before anybody coordinates its groups."""

    @property
    def partition_count(self) -> int:
        """Count the partitions of the topic; 0 if there is none."""

    async def make(self) -> None:
        """Make the topic. Raises StartupError if that is not possible."""

    def batches(self, partition: int) -> AsyncIterator[InternalBatch]:
        """Iterate over all that a partition has. Raises DamagedObject, StoreError, StorageFailed."""

    async def write(self, partition: int, records: Sequence[Record]) -> None:
        """Append records, as soon as there is room. Raises StorageFailed."""

    async def settle(self) -> None:
        """Wait until all that was written is durable, and in the bucket. Raises StorageFailed."""


async def move_groups(metadata: MetadataStore, destination: Destination, *, now_ms: int) -> bool:
    """Move everything, and tell whether there was anything to move. Raises DamagedObject, and as the destination."""
    entries = await metadata.list(PREFIX)
    if any(entry.key == MOVED_KEY for entry in entries):
        return False
    groups = read_groups(entries)
    if groups:
        if not destination.partition_count:
            await destination.make()
        await _write(groups, destination, now_ms)
        await destination.settle()
    moved = Transaction(delete_prefixes=[PREFIX], puts={MOVED_KEY: encode(now_ms)}, essential=True)
    await metadata.commit(moved)
    if groups:
        logger.info("%d groups have moved from the metadata to __consumer_offsets", len(groups))
    return bool(groups)


async def _write(groups: Mapping[str, FormerGroup], destination: Destination, now_ms: int) -> None:
    count = destination.partition_count
    by_partition: list[dict[str, FormerGroup]] = [{} for _ in range(count)]
    for group_id, group in groups.items():
        by_partition[coordinator_partition(group_id, count)][group_id] = group
    for partition, wanted in enumerate(by_partition):
        found = GroupsLoading(partition, 0)
        async for batch in destination.batches(partition):
            found.apply(batch)
        piece: list[Record] = []
        for record in (*_leftovers(found, wanted, now_ms), *_records(wanted, now_ms)):
            piece.append(record)
            if len(piece) == PIECE_COUNT:
                await destination.write(partition, piece)
                piece = []
                await trio.lowlevel.checkpoint()
        if piece:
            await destination.write(partition, piece)


def _records(groups: Mapping[str, FormerGroup], now_ms: int) -> Iterator[Record]:
    for group_id, group in groups.items():
        for at, offset in group.offsets.items():
            yield offset_record(group_id, at, offset, timestamp_ms=now_ms)
        if group.record is not None:
            yield group_record(group_id, group.record, timestamp_ms=now_ms)


def _leftovers(found: GroupsLoading, wanted: Mapping[str, FormerGroup], now_ms: int) -> Iterator[Record]:
    """Yield what takes back all that a partition has, but for what will be written anew."""
    for group_id, loaded in found.groups.items():
        kept = wanted.get(group_id, FormerGroup())
        for at in loaded.offsets.keys() - kept.offsets.keys():
            yield offset_record(group_id, at, None, timestamp_ms=now_ms)
        if loaded.record is not None and kept.record is None:
            yield group_record(group_id, None, timestamp_ms=now_ms)
