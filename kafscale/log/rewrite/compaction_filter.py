"""Decide which records and markers of each batch compaction keeps, as Kafka's Cleaner does. Sans-IO.

    a record            goes if a later one of the dirty part has its key, if it has no key, or if it was aborted
    a tombstone         goes too once its batch's delete horizon has passed: `delete.retention.ms` after the first
                        compaction that met it (KIP-534); until then whoever reads from the start sees the deletion
    a marker            as a tombstone, once nothing is left of its transaction
    a batch             goes with its last record, but that which holds a producer's last sequence number stays, empty
                        if need be, and so does the last one of a segment: its end must be seen by readers
    offsets, sequences  are never changed: a batch keeps its first and last offset, whatever is left between

Only records below `end_offset` are judged; later ones have not been read.

Transactions follow Kafka's CleanedTransactionMetadata: records of an aborted transaction go at once; a marker stays
while a batch of its transaction does, because readers need it. `Outcomes` learns which transactions were aborted from
the markers of the stretch that is cleaned for the first time, so that stretch must not end inside a transaction.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence

import attrs

from kafscale.buffers import Buffer
from kafscale.log.rewrite.compaction_map import OffsetMap
from kafscale.log.rewrite.compaction_records import RecordPlaces, keep_records, locate_records, without_records
from kafscale.wire.records import BatchHeader


@attrs.frozen(kw_only=True)
class CompactionRules:
    """The rules of one compaction of a partition.

    end_offset: where the part ends whose keys are in the map.
    producers_last_offsets: where the last batch of each producer that is remembered ends.
    """

    end_offset: int
    now_ms: int
    delete_retention_ms: int
    producers_last_offsets: Collection[int]
    aborted: Sequence[AbortedTransaction] = ()


@attrs.define(eq=False, repr=False)
class CompactionFilter:
    """Takes the batches of a partition in order of offset."""

    rules: CompactionRules
    latest: OffsetMap
    removed_records_count: int = attrs.field(default=0, init=False)
    _transactions: TransactionFilter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._transactions = TransactionFilter(self.rules.aborted)

    def compact(self, batch: memoryview, header: BatchHeader, *, ends_segment: bool) -> Buffer | None:
        """Return what is left of a batch, which is the batch itself if that is all of it; None if nothing is.

        Raises CorruptBatch.
        """
        if header.base_offset >= self.rules.end_offset:
            return batch
        is_done_with = self._transactions.is_done_with(header)
        marker_is_done = is_done_with and header.is_control
        if marker_is_done:
            all_go = not header.record_count or self._has_passed(header.delete_horizon_ms)
        else:
            all_go = is_done_with
        left: Buffer | None = None
        if not all_go:
            left = self._keep_some(batch, header, marker_is_done=marker_is_done)
        elif header.record_count:
            self.removed_records_count += header.record_count
        if left is None and (ends_segment or self._is_last_of_producer(header)):
            return batch if not header.record_count else without_records(header)
        return left

    def _keep_some(self, batch: memoryview, header: BatchHeader, *, marker_is_done: bool) -> Buffer | None:
        if header.is_control and not marker_is_done:
            return batch
        places = locate_records(batch, header)
        kept = list(range(len(places))) if header.is_control else self._survivors(places, header)
        self.removed_records_count += len(places) - len(kept)
        if not kept:
            return None
        if header.delete_horizon_ms is None and (marker_is_done or self._has_tombstone(places, kept)):
            horizon_ms = self.rules.now_ms + self.rules.delete_retention_ms
            return keep_records(header, places, kept, delete_horizon_ms=horizon_ms)
        return batch if len(kept) == len(places) else keep_records(header, places, kept)

    def _survivors(self, places: RecordPlaces, header: BatchHeader) -> Sequence[int]:
        """The numbers of the records that stay."""
        tombstones_go = self._has_passed(header.delete_horizon_ms)
        end_offset = self.rules.end_offset
        latest = iter(self.latest.get_all(key for key in places.keys if key is not None))
        kept = []
        for index, (offset, key) in enumerate(zip(places.offsets, places.keys, strict=True)):
            is_latest = key is not None and offset >= next(latest)
            if offset >= end_offset or (is_latest and not (tombstones_go and places.tombstones[index])):
                kept.append(index)
        return kept

    def _has_tombstone(self, places: RecordPlaces, kept: Sequence[int]) -> bool:
        return any(places.tombstones[index] and places.offsets[index] < self.rules.end_offset for index in kept)

    def _has_passed(self, delete_horizon_ms: int | None) -> bool:
        return delete_horizon_ms is not None and delete_horizon_ms <= self.rules.now_ms

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        return header.has_producer_id and header.last_offset in self.rules.producers_last_offsets


ABORT = 0  # the type of a marker, the second field of a control record's key (KIP-98)
_marker_key = struct.Struct(">hh")


@attrs.frozen
class AbortedTransaction:
    """A producer's batches from `first_offset` to that of the marker were aborted."""

    producer_id: int
    first_offset: int
    marker_offset: int

    def holds(self, header: BatchHeader) -> bool:
        """Tell whether a batch is part of the transaction."""
        is_between = self.first_offset <= header.base_offset < self.marker_offset
        return is_between and header.producer_id == self.producer_id


@attrs.define(eq=False, repr=False)
class Outcomes:
    """Outcomes of transactions, gathered from batches in order of offset."""

    aborted: list[AbortedTransaction] = attrs.field(factory=list, init=False)
    _open: dict[int, int] = attrs.field(factory=dict, init=False)  # producer id -> first offset

    def read(self, batch: memoryview, header: BatchHeader) -> None:
        """Read the next batch. Raises CorruptBatch."""
        if not header.is_control:
            if header.is_transactional:
                self._open.setdefault(header.producer_id, header.base_offset)
        elif (first_offset := self._open.pop(header.producer_id, None)) is not None and _is_abort(batch, header):
            self.aborted.append(AbortedTransaction(header.producer_id, first_offset, header.base_offset))

    @property
    def first_open_offset(self) -> int | None:
        """Return where the oldest transaction begins that has no marker yet, or None."""
        return min(self._open.values(), default=None)


@attrs.define(eq=False, repr=False)
class TransactionFilter:
    """Says of each batch, in order of offset, whether its transaction needs it no more."""

    aborted: Sequence[AbortedTransaction]
    _observed: set[int] = attrs.field(factory=set, init=False)  # producers of whose transaction a batch was seen

    def is_done_with(self, header: BatchHeader) -> bool:
        """Tell whether a batch was aborted, or is a marker without a batch left to tell of."""
        if header.is_control:
            if header.producer_id in self._observed:
                self._observed.remove(header.producer_id)
                return False
            return True
        if not header.is_transactional:
            return False
        self._observed.add(header.producer_id)
        return any(transaction.holds(header) for transaction in self.aborted)


def _is_abort(batch: memoryview, header: BatchHeader) -> bool:
    for key in locate_records(batch, header).keys:
        if key is not None and len(key) >= _marker_key.size:
            return bool(_marker_key.unpack_from(key)[1] == ABORT)
    return False
