"""Track a partition's open transactions by batches and markers: one rule for the broker and for readers of the bucket.

    a batch with the first records of a producer's transaction      opens it
    its marker, a control batch of the coordinator's                ends it: committed or aborted

Decided is what lies before the first offset of the oldest transaction that is open: from there on no reader of what is
committed may go. Pure and synchronous, as Kafka's ProducerStateManager has it (KIP-98).
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Protocol

import attrs

from kafscale.formats.transactions import AbortedTransaction, OpenTransaction
from kafscale.wire.control_records import EndMarker

_first_offset = attrgetter("first_offset")


class Produced(Protocol):
    """The fields of a batch header that are needed here."""

    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...


@attrs.frozen
class Ended:
    """A transaction as it was before its marker; `aborted` if the marker says that."""

    before: OpenTransaction
    marker_offset: int
    aborted: AbortedTransaction | None

    @property
    def first_offset(self) -> int:
        """Return where it begins."""
        return self.before.first_offset


@attrs.define(eq=False, repr=False)
class OpenTransactions:
    """The transactions that are open, by producer id and in order of the first offset."""

    open: dict[int, OpenTransaction] = attrs.field(factory=dict, init=False)

    @classmethod
    def of(cls, transactions: Iterable[OpenTransaction]) -> OpenTransactions:
        """Begin with those that are open at the end of a segment."""
        begun = cls()
        begun.begin_with(transactions)
        return begun

    def begin_with(self, transactions: Iterable[OpenTransaction]) -> None:
        """Replace the open transactions by these, in the same dictionary."""
        self.open.clear()
        for transaction in sorted(transactions, key=_first_offset):
            self.open[transaction.producer_id] = transaction

    def take_batch(self, header: Produced, base_offset: int, coordinator_epoch: int = -1) -> bool:
        """A transactional batch comes next: tell whether it opens a transaction, or goes on with the open one."""
        current = self.open.get(header.producer_id)
        if current is None:
            opened = OpenTransaction(header.producer_id, header.producer_epoch, base_offset, coordinator_epoch)
            self.open[header.producer_id] = opened
        elif current.epoch != header.producer_epoch:
            self.open[header.producer_id] = attrs.evolve(current, epoch=header.producer_epoch)
        return current is None

    def end_by(self, marker: EndMarker, offset: int) -> Ended | None:
        """A marker comes next, at this offset: return what it ends; None if nothing is open of its producer."""
        before = self.open.pop(marker.producer_id, None)
        if before is None:
            return None
        aborted: AbortedTransaction | None = None
        if not marker.is_commit:
            stable_offset = self.stable_end(offset + 1)
            aborted = AbortedTransaction(marker.producer_id, before.first_offset, offset, stable_offset)
        return Ended(before, offset, aborted)

    def stable_end(self, end_offset: int) -> int:
        """Return the end of what is decided of a log that ends at `end_offset`, exclusive."""
        oldest = next(iter(self.open.values()), None)
        return end_offset if oldest is None else min(oldest.first_offset, end_offset)
