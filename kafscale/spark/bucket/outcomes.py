"""Which transactions were aborted, told by footers and the log: readers of what is committed leave them out (KIP-98).

A transaction is told of in the segment that has its marker, so it may be some segments behind its records. The search
ends where a segment is stable up to the end of what is read: whatever was aborted behind it begins there or later.

Where brokers are asked, they tell what became of a transaction that is open at the end of the segments; those behind
are told of with the batches that are fetched.

A segment that is missing, or damaged with its footer, may have had a marker. Then it is not known whether what was open
before it was aborted; it counts as aborted, and whoever plans the read says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import attrs

from kafscale.formats.segment import Footer
from kafscale.formats.transactions import AbortedTransaction, OpenTransaction
from kafscale.spark.bucket.catalog import Catalog, PartitionLog
from kafscale.spark.bucket.tails import Tail

READ_AHEAD_MAX_COUNT = 32  # footers behind what is read: one first, as it is nearly always enough, then twice as many


@attrs.frozen(kw_only=True)
class Outcomes:
    """The transactions that have offsets in what is read and do not count, in no order.

    `unknown` are those of which no intact segment tells how they ended; `aborted` has them, too.
    """

    aborted: Sequence[AbortedTransaction] = ()
    unknown: Sequence[OpenTransaction] = ()


def outcomes_between(catalog: Catalog, log: PartitionLog, start_offset: int, end_offset: int) -> Outcomes:
    """Find them for these offsets of a log, the end exclusive. Raises StoreError, and if brokers are asked
    BrokerUnavailable and KafkaError.
    """
    aborted: dict[_Key, AbortedTransaction] = {}
    unknown: dict[_Key, _Unknown] = {}
    before: Footer | Tail | None = None
    for footer in _told_from(catalog, log, start_offset):
        if before is not None and _base_offset(footer) > before.last_offset + 1:
            unknown |= _open_at_the_end_of(before, _base_offset(footer))
            for each in footer.open_transactions:
                unknown.pop((each.producer_id, each.first_offset), None)
        aborted |= {
            (each.producer_id, each.first_offset): each
            for each in footer.aborted
            if each.overlaps(start_offset, end_offset)
        }
        if footer.stable_end >= end_offset:
            break
        before = footer
    else:
        if before is not None:
            left_open = _open_at_the_end_of(before, end_offset)
            if log.behind is not None:
                ended, left_open = _told_by_brokers(catalog, log, before, left_open)
                aborted |= {key: each.as_aborted() for key, each in ended.items()}
            unknown |= left_open
    left = [each for key, each in unknown.items() if key not in aborted and each.transaction.first_offset < end_offset]
    return Outcomes(
        aborted=[*aborted.values(), *(each.as_aborted() for each in left)],
        unknown=[each.transaction for each in left],
    )


def _told_by_brokers(
    catalog: Catalog, log: PartitionLog, last: Footer | Tail, left_open: Mapping[_Key, _Unknown]
) -> tuple[Mapping[_Key, _Unknown], Mapping[_Key, _Unknown]]:
    """Return those that were aborted of the transactions that `last` leaves open, and those of which brokers do not
    tell. Raises BrokerUnavailable, KafkaError.
    """
    assert catalog.brokers is not None
    if not left_open:
        return {}, {}
    offset = min(last.last_offset, log.end_offset - 1)  # of each that is read, as their markers are behind `last`
    producer_ids = catalog.brokers.aborted_around(log.fetched_topic(), offset, open_until=last.last_offset)
    if producer_ids is None:
        return {}, left_open
    return {key: each for key, each in left_open.items() if each.transaction.producer_id in producer_ids}, {}


_Key = tuple[int, int]  # producer id, first offset


@attrs.frozen
class _Unknown:
    """A transaction that was open, and where the segments end that would tell what became of it."""

    transaction: OpenTransaction
    behind: int

    def as_aborted(self) -> AbortedTransaction:
        return AbortedTransaction(
            self.transaction.producer_id, self.transaction.first_offset, self.behind, self.transaction.first_offset
        )


def _base_offset(told: Footer | Tail) -> int:
    return told.base_offset if isinstance(told, Tail) else told.identity.base_offset


def _open_at_the_end_of(footer: Footer | Tail, behind: int) -> Mapping[_Key, _Unknown]:
    return {(each.producer_id, each.first_offset): _Unknown(each, behind) for each in footer.open_transactions}


def _told_from(catalog: Catalog, log: PartitionLog, start_offset: int) -> Iterator[Footer | Tail]:
    """The intact footers of the segments that have this offset or come later, in order; read as they are asked for.

    Behind them is what the write-ahead log tells.
    """
    segments = iter([each for each in log.segments if each.last_offset >= start_offset])
    count = 1
    while keys := [each.key for each in islice(segments, count)]:
        footers = catalog.footers(keys)
        yield from (footers[key] for key in keys if key in footers)
        count = min(2 * count, READ_AHEAD_MAX_COUNT)
    if log.tail.batches:
        yield log.tail
