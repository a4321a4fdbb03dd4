"""Tell partitions which of their batches a journal has made durable, so that they can be read and flushed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafscale.formats.wal_entries import WalEntry
from kafscale.log.partition.tail import TailBatch

if TYPE_CHECKING:
    from kafscale.log.partition.partition import Partition


def topic_name(entry: WalEntry) -> str:
    """Return the name of the topic of an entry that a partition has appended, for the log to tell it."""
    assert isinstance(entry, TailBatch)
    return entry.owner.topic


def became_durable(entries: Iterable[WalEntry]) -> None:
    """Advance the high watermarks past these durable entries, which come in the order of their appends.

    What a journal is made with: it calls this before anybody who waits for a round is woken.
    """
    ends: dict[Partition, int] = {}
    sizes: dict[Partition, int] = {}
    for batch in entries:
        assert isinstance(batch, TailBatch)
        batch.became_durable()
        partition = batch.owner
        if partition.closed:
            partition.release(batch)
        else:
            ends[partition] = batch.last_offset + 1
            sizes[partition] = sizes.get(partition, 0) + batch.size_bytes
    for partition, end_offset in ends.items():
        partition.on_durable(end_offset, sizes[partition])
