"""Find the aborted transactions in fetched offsets, so that `read_committed` consumers drop their records (KIP-98).

A transaction is recorded in the segment with its marker, so it may be some segments behind the records. The search
ends at a segment that is stable up to the end of the read: transactions aborted behind it begin there or later. The
manifest tells which segments tell of none, so most footers need not be read for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence

from kafscale.errors import DamagedObject, NotFound
from kafscale.formats.manifest import Segment
from kafscale.formats.segment import Footer
from kafscale.formats.transactions import AbortedTransaction
from kafscale.log.partition.partition import Partition
from kafscale.log.read.footers import Footers


def aborted_in(footer: Footer, offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
    """The aborted transactions that a segment tells of with offsets from `offset` on and before `end_offset`."""
    return [transaction for transaction in footer.aborted if transaction.overlaps(offset, end_offset)]


def aborted_behind_nowait(
    footers: Footers, partition: Partition, segment: Segment, end_offset: int
) -> Sequence[AbortedTransaction] | None:
    """Return what `aborted_behind` does, or None if a footer that tells of it is not in memory."""
    search = _search(partition, segment, end_offset)
    try:
        wanted = next(search)
        while (footer := footers.get_nowait(wanted)) is not None:
            wanted = search.send(footer)
    except StopIteration as ended:
        found: Sequence[AbortedTransaction] = ended.value
        return found
    return None


async def aborted_behind(
    footers: Footers,
    partition: Partition,
    segment: Segment,
    end_offset: int,
    settle: Callable[[Partition, Segment, DamagedObject], Awaitable[None]],
) -> Sequence[AbortedTransaction]:
    """The aborted transactions that began before `end_offset` and whose markers are behind a segment.

    `settle` is called for a segment that is damaged; afterwards it is rebuilt, or not in the manifest any more. Raises
    NotFound, StoreError, and what `settle` does.
    """
    search = _search(partition, segment, end_offset)
    try:
        wanted = next(search)
        while True:
            footer = None
            try:
                footer = await footers.get(wanted)
            except NotFound:
                footers.forget(wanted)
                if partition.manifest.refers_to(wanted.key):
                    raise
            except DamagedObject as exc:
                await settle(partition, wanted, exc)
            wanted = search.send(footer)
    except StopIteration as ended:
        found: Sequence[AbortedTransaction] = ended.value
        return found


def _search(
    partition: Partition, segment: Segment, end_offset: int
) -> Generator[Segment, Footer | None, Sequence[AbortedTransaction]]:
    """Search behind a segment; yields each whose footer is to be sent, or None if its place is to be looked at anew."""
    found: list[AbortedTransaction] = []
    behind = segment.last_offset + 1
    while behind < partition.flushed_offset:
        following = partition.manifest.find(behind)
        if following is None:
            break
        stable_end = following.stable_end
        if following.aborted_count:  # or if that is not known
            footer = yield following
            if footer is None:
                continue
            found += aborted_in(footer, behind, end_offset)
            stable_end = footer.stable_end
        if stable_end >= end_offset:
            return found
        behind = following.last_offset + 1
    return [*found, *partition.transactions.aborted_between(behind, end_offset)]
