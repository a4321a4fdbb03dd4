"""What the write-ahead log has of a partition behind its last segment: records that are acknowledged, not yet flushed.

The rules are those by which a start takes entries back (`kafscale.log.log.Log.replay`): what a segment has is passed
over, and so is what a broker of a later epoch has put an end to; what goes on is taken; and the first hole ends the
tail. Its transactions follow from the last segment's footer and the batches of the tail alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from kafscale.formats.segment import EpochStart, Footer
from kafscale.formats.transactions import AbortedTransaction, OpenTransaction, OpenTransactions
from kafscale.formats.wal_index import LoggedBatch
from kafscale.formats.wal_runs import is_superseded


@attrs.frozen(kw_only=True)
class Tail:
    """Batches that follow one another behind the last segment, or none.

    `aborted` are the transactions whose marker is in the tail, `open_transactions` those that are open at its end.
    """

    batches: Sequence[LoggedBatch] = ()
    aborted: Sequence[AbortedTransaction] = ()
    open_transactions: Sequence[OpenTransaction] = ()

    @classmethod
    def of(cls, logged: Sequence[LoggedBatch], last: Footer | None, log_start_offset: int) -> Tail:
        """Make it of all that the log has of a partition. `last` is the footer of the last segment, if there is one."""
        batches = list(_following(logged, last, log_start_offset))
        transactions = OpenTransactions.of(() if last is None else last.open_transactions)
        aborted: list[AbortedTransaction] = []
        for each in batches:
            if each.marker is not None:
                ended = transactions.end_by(each.marker, each.base_offset)
                if ended is not None and ended.aborted is not None:
                    aborted.append(ended.aborted)
            elif each.header is not None and not each.header.is_control:
                transactions.take_batch(each.header, each.base_offset)
        return cls(batches=batches, aborted=aborted, open_transactions=list(transactions.open.values()))

    @property
    def base_offset(self) -> int:
        """Return where it begins, of one that has batches."""
        return self.batches[0].base_offset

    @property
    def last_offset(self) -> int:
        """Return the last offset, of one that has batches."""
        return self.batches[-1].next_offset - 1

    @property
    def stable_end(self) -> int:
        """Return the end of what is decided, of one that has batches."""
        return min([each.first_offset for each in self.open_transactions[:1]], default=self.last_offset + 1)


NO_TAIL = Tail()


def begun(logged: Sequence[LoggedBatch]) -> Sequence[EpochStart]:
    """Return where each leader epoch is known to have begun: what an earlier one has in segments there came late."""
    starts: dict[int, int] = {}
    for each in logged:
        starts.setdefault(each.leader_epoch, each.base_offset)
    return [EpochStart(epoch, start_offset) for epoch, start_offset in starts.items()]


def _following(logged: Sequence[LoggedBatch], last: Footer | None, log_start_offset: int) -> Iterator[LoggedBatch]:
    next_offset = 0 if last is None else last.last_offset + 1
    epochs = [] if last is None else list(last.epochs)
    is_first = True
    for each in logged:
        if _is_over(each, next_offset, epochs):
            continue
        if is_first and next_offset < each.base_offset <= log_start_offset:
            next_offset = each.base_offset  # what is below was deleted, and never flushed
        if each.base_offset != next_offset:
            return
        if not epochs or epochs[-1].epoch != each.leader_epoch:
            epochs.append(EpochStart(each.leader_epoch, each.base_offset))
        is_first = False
        next_offset = each.next_offset
        yield each


def _is_over(batch: LoggedBatch, next_offset: int, epochs: Sequence[EpochStart]) -> bool:
    """Tell whether a segment has the batch, or a broker of a later epoch has begun before it."""
    begins = EpochStart(batch.leader_epoch, batch.base_offset)
    return batch.base_offset < next_offset or is_superseded(begins, epochs, next_offset)
