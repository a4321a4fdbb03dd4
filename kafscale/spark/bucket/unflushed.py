"""The tail of a partition: acknowledged records in the write-ahead log behind its last segment.

The rules are those of a broker's start (`kafscale.log.log.Log.replay`): batches that a segment has are skipped, and so
are those that a later epoch has cut off; the first hole ends the tail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from kafscale.formats.segment import EpochStart, Footer
from kafscale.formats.transactions import AbortedTransaction, OpenTransaction, OpenTransactions
from kafscale.formats.wal_index import LoggedBatch
from kafscale.formats.wal_runs import is_superseded


@attrs.frozen(kw_only=True)
class UnflushedTail:
    """Batches that follow one another behind the last segment, or none.

    `aborted` transactions have their marker in the tail; `open_transactions` are open at its end.
    """

    batches: Sequence[LoggedBatch] = ()
    aborted: Sequence[AbortedTransaction] = ()
    open_transactions: Sequence[OpenTransaction] = ()

    @classmethod
    def of(cls, logged: Sequence[LoggedBatch], last: Footer | None, log_start_offset: int) -> UnflushedTail:
        """Make the tail of a partition's batches in the log. `last` is the footer of its last segment, if any."""
        batches = list(_following(logged, last, log_start_offset))
        transactions = OpenTransactions.of(() if last is None else last.open_transactions)
        aborted: list[AbortedTransaction] = []
        for batch in batches:
            if batch.marker is not None:
                ended = transactions.end_by(batch.marker, batch.base_offset)
                if ended is not None and ended.aborted is not None:
                    aborted.append(ended.aborted)
            elif batch.header is not None and not batch.header.is_control:
                transactions.take_batch(batch.header, batch.base_offset)
        return cls(batches=batches, aborted=aborted, open_transactions=list(transactions.open.values()))

    @property
    def base_offset(self) -> int:
        return self.batches[0].base_offset

    @property
    def last_offset(self) -> int:
        return self.batches[-1].next_offset - 1

    @property
    def stable_end(self) -> int:
        """Return the last stable offset of a tail with batches."""
        return min(
            [transaction.first_offset for transaction in self.open_transactions[:1]], default=self.last_offset + 1
        )


NO_TAIL = UnflushedTail()


def begun(logged: Sequence[LoggedBatch]) -> Sequence[EpochStart]:
    """Return where each leader epoch has begun: segments of an earlier epoch from there on came too late."""
    starts: dict[int, int] = {}
    for batch in logged:
        starts.setdefault(batch.leader_epoch, batch.base_offset)
    return [EpochStart(epoch, start_offset) for epoch, start_offset in starts.items()]


def _following(logged: Sequence[LoggedBatch], last: Footer | None, log_start_offset: int) -> Iterator[LoggedBatch]:
    next_offset = 0 if last is None else last.last_offset + 1
    epochs = [] if last is None else list(last.epochs)
    is_first = True
    for batch in logged:
        if _is_over(batch, next_offset, epochs):
            continue
        if is_first and next_offset < batch.base_offset <= log_start_offset:
            next_offset = batch.base_offset  # what is below was deleted, and never flushed
        if batch.base_offset != next_offset:
            return
        if not epochs or epochs[-1].epoch != batch.leader_epoch:
            epochs.append(EpochStart(batch.leader_epoch, batch.base_offset))
        is_first = False
        next_offset = batch.next_offset
        yield batch


def _is_over(batch: LoggedBatch, next_offset: int, epochs: Sequence[EpochStart]) -> bool:
    begins = EpochStart(batch.leader_epoch, batch.base_offset)
    return batch.base_offset < next_offset or is_superseded(begins, epochs, next_offset)
