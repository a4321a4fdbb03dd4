"""What compaction keeps of each batch: Kafka's Cleaner, batch by batch. Sans-IO.

    a record            goes if a later one of the dirty part has its key, if it has no key, or if it was aborted
    a tombstone         goes too once its batch's delete horizon has passed: `delete.retention.ms` after the first
                        compaction that met it (KIP-534); until then whoever reads from the start sees the deletion
    a marker            as a tombstone, once nothing is left of its transaction
    a batch             goes with its last record, but that which holds a producer's last sequence number stays, empty
                        if need be, and so does the last one of a segment: its end must be seen by readers
    offsets, sequences  are never changed: a batch keeps its first and last offset, whatever is left between

Only records below `end_offset` are judged: what follows has not been looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

from kafscale.buffers import Buffer
from kafscale.log.rewrite.compaction_map import OffsetMap
from kafscale.log.rewrite.compaction_records import RecordPlaces, keep_records, locate_records, without_records
from kafscale.log.rewrite.compaction_transactions import AbortedTransaction, TransactionFilter
from kafscale.wire.records import BatchHeader


@attrs.frozen(kw_only=True)
class CompactionRules:
    """What holds for one compaction of a partition.

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
