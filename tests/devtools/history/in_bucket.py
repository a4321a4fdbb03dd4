"""Checker of segments: footers and batches must tell the same about transactions.

    a marker that aborts a transaction with batches here   is in the footer of its segment, with the first offset of
                                                           these batches, or less
    an aborted transaction of a footer                     has such a marker there
    open transactions at a segment's end                   are those of its footer

Independent of `kafscale.log.repair.verify_transactions`: it uses the batches of the whole partition. Compaction removes
batches, so of segments with holes only the first rule is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kafscale.formats.transactions import AbortedTransaction
from kafscale.wire.batch_header import parse_header
from kafscale.wire.control_records import parse_marker
from tests.devtools.history.bucket import BucketSegment


def transaction_faults(
    segments: Sequence[BucketSegment], *, log_start_offset: int = 0, may_be_open: bool = False
) -> Iterator[str]:
    """Return the faults of a partition's segments, which are in order.

    log_start_offset: segments wholly below it are ignored. A superseded segment may await its deletion there, when the
    markers have gone with the segment that was read in its place.
    may_be_open: transactions that are open at the very end are allowed.
    """
    segments = [segment for segment in segments if segment.footer.last_offset >= log_start_offset]
    begun: dict[int, int] = {}  # producer: where its open transaction has its first batch here
    has_holes = False
    for segment in segments:
        footer = segment.footer
        told = {(aborted.producer_id, aborted.marker_offset): aborted for aborted in footer.aborted}
        has_holes = has_holes or not segment.is_whole
        yield from _one(segment, begun, told)
        if not has_holes:
            yield from (f"no marker aborts {aborted}" for aborted in told.values())
            is_open = {
                open_transaction.producer_id: open_transaction.first_offset
                for open_transaction in footer.open_transactions
            }
            later = {producer: first for producer, first in begun.items() if is_open.get(producer, first + 1) > first}
            closed = is_open.keys() - begun.keys() if segments[0].footer.identity.base_offset == 0 else set()
            if later or closed:
                yield f"open at {footer.last_offset} are {begun}, the footer says {is_open}"
    if begun and not may_be_open:
        yield f"transactions that never end: {begun}"


def _one(
    segment: BucketSegment, begun: dict[int, int], told: dict[tuple[int, int], AbortedTransaction]
) -> Iterator[str]:
    for batch in segment.batches:
        header = parse_header(batch)
        if not header.is_control:
            if header.is_transactional:
                begun.setdefault(header.producer_id, header.base_offset)
            continue
        first = begun.pop(header.producer_id, None)
        marker = parse_marker(batch, header)
        entry = told.pop((header.producer_id, header.base_offset), None)
        if marker is None:
            continue  # compaction has emptied it
        if marker.is_commit and entry is not None:
            yield f"{entry} was committed"
        if not marker.is_commit and first is not None and (entry is None or entry.first_offset > first):
            yield f"the marker at {header.base_offset} aborts from {first} on, the footer says {entry}"
