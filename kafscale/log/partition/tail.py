"""The memory tail of a partition: record batches that are ordered and not yet in the bucket.

A batch's bytes are in a chunk of the pool; journal, fetch and upload send them without a copy. A batch that the local
log has may give up its chunk when the pool runs short (`spill`), and is then read from the log's file. After a restart
every replayed batch starts spilled.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

import attrs

from kafscale.buffers import Buffer, size_of
from kafscale.formats.transactions import AbortedTransaction
from kafscale.formats.wal_entries import WalEntry

if TYPE_CHECKING:
    from kafscale.log.partition.partition import Partition

_last_offset = attrgetter("last_offset")


ALONE = -1  # `start` of a batch that was received into a lease of its frame


class Releasable(Protocol):
    def release(self) -> None: ...


class Memory(Releasable, Protocol):
    """Memory that holds batches: a `Lease` on a run of the chunk pool, for partitions that this broker leads."""

    @property
    def view(self) -> memoryview: ...

    @property
    def held_bytes(self) -> int: ...

    def retain(self) -> None: ...


@attrs.define(eq=False, kw_only=True, repr=False)
class TailBatch(WalEntry):
    """One record batch: its WAL entry, and where its bytes are.

    `lease` and `start` locate the bytes in the pool. `start` is ALONE if no other batch follows in the same lease; then
    `data` keeps them. Otherwise `data` is emptied once the log has them, which saves a third of a batch's memory. After
    a spill `lease` is None, and `file` and `position` (of WalEntry) locate the bytes in the WAL.
    """

    owner: Partition
    last_offset: int
    max_timestamp_ms: int
    min_timestamp_ms: int  # MIN_TIMESTAMP_UNKNOWN while the records were not read
    size_bytes: int
    lease: Memory | None
    start: int

    def became_durable(self) -> None:
        if self.start != ALONE:
            self.data = b""

    def spill(self) -> None:
        assert self.file is not None
        assert self.lease is not None
        self.data = b""
        self.lease.release()
        self.lease = None


@attrs.define(eq=False, repr=False)
class Tail:
    """Consecutive batches in order of offset."""

    batches: list[TailBatch] = attrs.field(factory=list, init=False)
    size_bytes: int = attrs.field(default=0, init=False)
    pooled_bytes: int = attrs.field(default=0, init=False)  # of these, what is in the chunk pool

    def append(self, batch: TailBatch) -> None:
        self.batches.append(batch)
        self.size_bytes += batch.size_bytes
        if batch.lease is not None:
            self.pooled_bytes += batch.size_bytes

    def find(self, offset: int) -> int:
        """Return the index of the batch that holds `offset`, or of the first one after it."""
        return bisect_left(self.batches, offset, key=_last_offset)

    def select(self, offset: int, end_offset: int, max_bytes: int) -> Sequence[TailBatch]:
        """Return batches from the one that holds `offset`, below `end_offset`, at most `max_bytes` or one."""
        selected: list[TailBatch] = []
        size = 0
        for index in range(self.find(offset), len(self.batches)):
            batch = self.batches[index]
            size += batch.size_bytes
            if batch.last_offset >= end_offset or (selected and size > max_bytes):
                break
            selected.append(batch)
        return selected

    def chunks_bytes(self, max_bytes: int) -> int:
        """Return how many bytes of the pool the oldest batches hold, up to about `max_bytes` of batches."""
        size_bytes = held_bytes = 0
        last: Memory | None = None
        for batch in self.batches:
            if size_bytes >= max_bytes:
                break
            size_bytes += batch.size_bytes
            if batch.lease is not None and batch.lease is not last:
                last = batch.lease
                held_bytes += last.held_bytes
        return held_bytes

    def drop_first(self, count: int) -> Sequence[TailBatch]:
        """Remove the oldest `count` batches and return them; their chunks are still held."""
        dropped = self.batches[:count]
        del self.batches[:count]
        self.size_bytes -= sum(batch.size_bytes for batch in dropped)
        self.pooled_bytes -= sum(batch.size_bytes for batch in dropped if batch.lease is not None)
        return dropped

    def spill_before(self, offset: int, max_count: int = sys.maxsize) -> int:
        """Give up the chunks of the oldest batches that end before `offset`. Return the freed bytes."""
        first = bisect_left(self.batches, True, key=lambda batch: batch.lease is not None)
        spilled_bytes = 0
        for batch in self.batches[first : min(self.find(offset), first + max_count)]:
            batch.spill()
            spilled_bytes += batch.size_bytes
        self.pooled_bytes -= spilled_bytes
        return spilled_bytes


def without_holes(batches: Sequence[TailBatch]) -> Sequence[TailBatch]:
    """Return the first batches, up to the first gap in their offsets."""
    for at, (batch, following) in enumerate(pairwise(batches), 1):
        if following.base_offset != batch.last_offset + 1:
            return batches[:at]
    return batches


@attrs.define(eq=False, repr=False)
class Slices:
    """Buffers on their way to a socket, and the leases to release after they have left.

    `end_offset` is behind their last record, or behind the hole that an empty batch stands for. `aborted` are the
    aborted transactions with offsets in them. `is_damaged`: some batches are damaged, and the reader keeps only whole
    ones.
    """

    buffers: list[Buffer] = attrs.field(factory=list)
    leases: list[Releasable] = attrs.field(factory=list)
    end_offset: int = 0
    is_hole: bool = False  # there are no records in it
    is_damaged: bool = False
    aborted: Sequence[AbortedTransaction] = ()

    @property
    def size_bytes(self) -> int:
        return size_of(self.buffers)

    def add(self, other: Slices) -> None:
        self.buffers += other.buffers
        self.leases += other.leases

    def release(self) -> None:
        """Release the memory: the bytes have been sent, or are not wanted any more."""
        for lease in self.leases:
            lease.release()
        self.leases.clear()
        self.buffers.clear()


def coalesce(batches: Iterable[TailBatch]) -> Slices:
    """Return the bytes of batches in the pool; neighbours in one chunk become one buffer.

    A partition fills its chunks in order, so a thousand small batches become a few dozen buffers.
    """
    slices = Slices()
    lease: Memory | None = None
    start = end = 0  # of what neighbours have in it
    batch = None
    for batch in batches:
        if batch.lease is lease and batch.start == end:
            end += batch.size_bytes
            continue
        if lease is not None and start < end:
            slices.buffers.append(lease.view[start:end])
        lease = batch.lease
        assert lease is not None
        lease.retain()
        slices.leases.append(lease)
        if batch.start == ALONE:
            slices.buffers.append(batch.data)
            start = end = 0
        else:
            start, end = batch.start, batch.start + batch.size_bytes
    if lease is not None and start < end:
        slices.buffers.append(lease.view[start:end])
    if batch is not None:
        slices.end_offset = batch.last_offset + 1
    return slices


def topic_name(entry: WalEntry) -> str:
    assert isinstance(entry, TailBatch)
    return entry.owner.topic


def became_durable(entries: Iterable[WalEntry]) -> None:
    """Advance the high watermarks past these durable entries, in the order of their appends.

    A journal calls this before it wakes the waiters of a round.
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
