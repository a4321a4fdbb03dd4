"""Leaves out aborted transactions (KIP-98): finds them by footers and the log, and tells their batches from others.

A transaction stands in the footer of the segment that has its marker, which may be some segments behind its records.
The search ends at a segment that is stable up to the end of the read: transactions aborted later begin there or later.
Brokers, if they are asked, tell the outcome of transactions that are open at the end of the segments.

A segment that is missing, or damaged with its footer, may have had a marker. Transactions that were open before it then
have an unknown outcome: they count as aborted, and the planner reports them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import attrs
import numpy as np
from numpy.typing import NDArray

from kafscale.formats.segment import Footer
from kafscale.formats.transactions import AbortedTransaction, OpenTransaction
from kafscale.spark.brokers.newest import Fetched
from kafscale.spark.bucket.batches import BatchHeaders
from kafscale.spark.bucket.catalog import Catalog, PartitionLog
from kafscale.spark.bucket.log_objects import UnflushedTail
from kafscale.wire.batch_header import CONTROL, TRANSACTIONAL


def shared_out(
    aborted: Sequence[AbortedTransaction], start_offsets: Sequence[int]
) -> Sequence[Sequence[AbortedTransaction]]:
    """Return the transactions that each of several reads meets. The reads follow one another from `start_offsets`."""
    shares: list[list[AbortedTransaction]] = [[] for _ in start_offsets]
    for transaction in aborted:
        first = max(0, bisect_right(start_offsets, transaction.first_offset) - 1)
        for share in shares[first : bisect_left(start_offsets, transaction.marker_offset)]:
            share.append(transaction)
    return shares


@attrs.frozen(eq=False, repr=False)
class AbortedBatches:
    """Tells batches of aborted transactions from others, many at once.

    The arrays have an element for each transaction, in order of producer and first offset. `_places` joins both into
    one number: the rank of the producer among all, and the rank of the offset.
    """

    _producer_ids: NDArray[np.int64]  # each once, in order
    _first_offsets: NDArray[np.int64]  # of all, in order
    _places: NDArray[np.int64]
    _marker_offsets: NDArray[np.int64]  # in the order of the places

    @classmethod
    def of(cls, transactions: Sequence[AbortedTransaction]) -> AbortedBatches | None:
        """Return None if there are no transactions."""
        if not transactions:
            return None
        rows = np.array([attrs.astuple(transaction)[:3] for transaction in transactions], np.int64)
        producer_ids, first_offsets = np.unique(rows[:, 0]), np.sort(rows[:, 1])
        places = _place(producer_ids, first_offsets, rows[:, 0], rows[:, 1])
        order = np.argsort(places)
        return cls(producer_ids, first_offsets, places[order], rows[order, 2])

    def among(self, headers: BatchHeaders) -> NDArray[np.bool_]:
        producer_ids, base_offsets = headers.rows["producer_id"].astype(np.int64), headers.base_offsets
        places = _place(self._producer_ids, self._first_offsets, producer_ids, base_offsets)
        found = np.searchsorted(self._places, places, side="right") - 1  # the latest that begins before it
        rank_count = len(self._first_offsets) + 1
        is_aborted: NDArray[np.bool_] = np.isin(producer_ids, self._producer_ids) & (found >= 0)
        is_aborted &= self._places[found] // rank_count == places // rank_count
        is_aborted &= base_offsets < self._marker_offsets[found]
        is_aborted &= headers.attributes & TRANSACTIONAL != 0
        return is_aborted


def _place(
    producer_ids: NDArray[np.int64],
    first_offsets: NDArray[np.int64],
    of_producer: NDArray[np.int64],
    at_offset: NDArray[np.int64],
) -> NDArray[np.int64]:
    rank = np.searchsorted(producer_ids, of_producer)
    return rank * (len(first_offsets) + 1) + np.searchsorted(first_offsets, at_offset, side="right")


READ_AHEAD_MAX_COUNT = 32  # footers behind what is read: one first, as it is nearly always enough, then twice as many


@attrs.frozen(kw_only=True)
class ReadOutcomes:
    """The transactions to leave out of a read. `aborted` includes `unknown`, whose outcome no intact segment tells."""

    aborted: Sequence[AbortedTransaction] = ()
    unknown: Sequence[OpenTransaction] = ()


def outcomes_between(catalog: Catalog, log: PartitionLog, start_offset: int, end_offset: int) -> ReadOutcomes:
    """Find the outcomes for these offsets, the end exclusive.

    Raises StoreError, and of brokers BrokerUnavailable, KafkaError.
    """
    aborted: dict[_Key, AbortedTransaction] = {}
    unknown: dict[_Key, _Unknown] = {}
    before: Footer | UnflushedTail | None = None
    for footer in _told_from(catalog, log, start_offset):
        if before is not None and _base_offset(footer) > before.last_offset + 1:
            unknown |= _open_at_the_end_of(before, _base_offset(footer))
            for transaction in footer.open_transactions:
                unknown.pop((transaction.producer_id, transaction.first_offset), None)
        aborted |= {
            (transaction.producer_id, transaction.first_offset): transaction
            for transaction in footer.aborted
            if transaction.overlaps(start_offset, end_offset)
        }
        if footer.stable_end >= end_offset:
            break
        before = footer
    else:
        if before is not None:
            left_open = _open_at_the_end_of(before, end_offset)
            if log.behind is not None:
                ended, left_open = _told_by_brokers(catalog, log, before, left_open)
                aborted |= {key: transaction.as_aborted() for key, transaction in ended.items()}
            unknown |= left_open
    left = [
        open_one
        for key, open_one in unknown.items()
        if key not in aborted and open_one.transaction.first_offset < end_offset
    ]
    return ReadOutcomes(
        aborted=[*aborted.values(), *(open_one.as_aborted() for open_one in left)],
        unknown=[open_one.transaction for open_one in left],
    )


def _told_by_brokers(
    catalog: Catalog, log: PartitionLog, last: Footer | UnflushedTail, left_open: Mapping[_Key, _Unknown]
) -> tuple[Mapping[_Key, _Unknown], Mapping[_Key, _Unknown]]:
    assert catalog.brokers is not None
    if not left_open:
        return {}, {}
    offset = min(last.last_offset, log.end_offset - 1)  # of each that is read, as their markers are behind `last`
    producer_ids = catalog.brokers.aborted_around(log.fetched_topic(), offset, open_until=last.last_offset)
    if producer_ids is None:
        return {}, left_open
    return {
        key: open_one for key, open_one in left_open.items() if open_one.transaction.producer_id in producer_ids
    }, {}


_Key = tuple[int, int]  # producer id, first offset


@attrs.frozen
class _Unknown:
    """A transaction that was open, and the end of the segments that would tell its outcome."""

    transaction: OpenTransaction
    behind: int

    def as_aborted(self) -> AbortedTransaction:
        return AbortedTransaction(
            self.transaction.producer_id, self.transaction.first_offset, self.behind, self.transaction.first_offset
        )


def _base_offset(told: Footer | UnflushedTail) -> int:
    return told.base_offset if isinstance(told, UnflushedTail) else told.identity.base_offset


def _open_at_the_end_of(footer: Footer | UnflushedTail, behind: int) -> Mapping[_Key, _Unknown]:
    return {
        (transaction.producer_id, transaction.first_offset): _Unknown(transaction, behind)
        for transaction in footer.open_transactions
    }


def _told_from(catalog: Catalog, log: PartitionLog, start_offset: int) -> Iterator[Footer | UnflushedTail]:
    segments = iter([segment for segment in log.segments if segment.last_offset >= start_offset])
    count = 1
    while keys := [segment.key for segment in islice(segments, count)]:
        footers = catalog.footers(keys)
        yield from (footers[key] for key in keys if key in footers)
        count = min(2 * count, READ_AHEAD_MAX_COUNT)
    if log.tail.batches:
        yield log.tail


def aborted_in(fetched: Fetched, headers: BatchHeaders) -> AbortedBatches | None:
    """Return the aborted transactions of one fetch, for its batches; None if the answer names none.

    The answer tells where they begin; their markers, which are batches of the answer, tell where they end. A
    transaction without a marker there goes on behind it (KIP-98).
    """
    if not fetched.aborted:
        return None
    markers = headers.only(headers.attributes & CONTROL != 0)
    producer_ids, offsets = markers.rows["producer_id"].astype(np.int64), markers.base_offsets
    end_offset = int(headers.next_offsets[-1])
    found: list[AbortedTransaction] = []
    for producer_id, first_offset in fetched.aborted:
        ends = offsets[(producer_ids == producer_id) & (offsets > first_offset)]
        marker_offset = int(ends[0]) if len(ends) else end_offset
        found.append(AbortedTransaction(producer_id, first_offset, marker_offset, first_offset))
    return AbortedBatches.of(found)
