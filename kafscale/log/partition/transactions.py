"""The transactions of one partition: open and aborted ones, and the last stable offset.

The first batch of a producer's transaction opens it; its marker commits or aborts it. The last stable offset (LSO) is
the first offset of the oldest transaction that is open or whose marker is not durable yet, else the high watermark.

An ended transaction is remembered until a segment has its marker, because a footer tells which transactions were open
at its segment's end, also when the marker has come since. Synchronous; the rules of KIP-98, KIP-360 and KIP-890.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final
from weakref import WeakValueDictionary

import attrs

from kafscale.errors import InvalidRecord, KafkaError
from kafscale.formats.transactions import AbortedTransaction, Ended, OpenTransaction, OpenTransactions, Producer
from kafscale.wire.batch_header import BatchHeader
from kafscale.wire.control_records import EndMarker
from kafscale.wire.error_codes import INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, TRANSACTION_COORDINATOR_FENCED

NEVER: Final = sys.maxsize  # the first unstable offset without open transactions

_marker_offset = attrgetter("marker_offset")
_first_offset = attrgetter("first_offset")


@attrs.define(eq=False, repr=False)
class Expectation:
    """A producer's first transactional batch that its coordinator on another broker has announced.

    It `holds` until a marker of the producer has come.
    """

    holds: bool = True


@attrs.define(eq=False, repr=False)
class Transactions(OpenTransactions):
    """All transactions of a partition that still matter. `first_unstable_offset`, or NEVER, bounds the LSO."""

    first_unstable_offset: int = attrs.field(default=NEVER, init=False)
    _ended: list[Ended] = attrs.field(factory=list, init=False)  # and in no segment; by marker
    _aborted: list[AbortedTransaction] = attrs.field(factory=list, init=False)  # of these
    _undurable: deque[Ended] = attrs.field(factory=deque, init=False)  # of these, by marker
    _expected: WeakValueDictionary[int, Expectation] | None = attrs.field(default=None, init=False)  # by producer

    # ---- what may come next -------------------------------------------------------------------------------------

    def check_data(self, header: BatchHeader, *, is_enrolled: bool) -> None:
        """Check that a data batch, which repeats no earlier one, agrees with the open transactions.

        `is_enrolled`: the coordinator has enrolled this partition in a transaction of this producer and epoch. Raises
        KafkaError INVALID_TXN_STATE (data outside of its transaction), INVALID_PRODUCER_EPOCH.
        """
        current = self.open.get(header.producer_id)
        if current is not None and header.producer_epoch < current.epoch:
            raise _older_epoch(header.producer_id, current.epoch, header.producer_epoch)
        if not header.is_transactional:
            if current is not None:
                raise KafkaError(
                    INVALID_TXN_STATE,
                    f"producer {header.producer_id} has a transaction open, and this batch is not part of it",
                )
            return
        if not header.has_producer_id:
            raise InvalidRecord("a transactional batch without a producer id")
        if not is_enrolled and not self.has_open(header.producer_id, header.producer_epoch):
            raise KafkaError(
                INVALID_TXN_STATE,
                f"producer {header.producer_id} has no transaction with epoch {header.producer_epoch} here",
            )

    def check_marker(self, marker: EndMarker, producer: Producer | None) -> bool:
        """Check whether a marker may be appended: False if it repeats the last one.

        Raises KafkaError INVALID_PRODUCER_EPOCH for an old epoch, and for a late marker that would end the next
        transaction; TRANSACTION_COORDINATOR_FENCED for a replaced coordinator.
        """
        if self._expected is not None and (expected := self._expected.pop(marker.producer_id, None)) is not None:
            expected.holds = False
        current = self.open.get(marker.producer_id)
        epoch = coordinator_epoch = -1
        if current is not None:
            epoch, coordinator_epoch = current.epoch, current.coordinator_epoch
        if producer is not None:
            epoch = max(epoch, producer.epoch)
            coordinator_epoch = max(coordinator_epoch, producer.coordinator_epoch)
        if marker.producer_epoch < epoch:
            raise _older_epoch(marker.producer_id, epoch, marker.producer_epoch)
        if marker.is_above and current is not None and marker.producer_epoch == current.epoch:
            raise KafkaError(  # KIP-1228
                INVALID_PRODUCER_EPOCH,
                f"a marker that has epoch {marker.producer_epoch} for producer {marker.producer_id}, as has the "
                "transaction that is open: it belongs to the one before",
            )
        if marker.coordinator_epoch < coordinator_epoch:
            raise KafkaError(
                TRANSACTION_COORDINATOR_FENCED,
                f"a marker of coordinator epoch {marker.coordinator_epoch} for producer {marker.producer_id}, which "
                f"one of epoch {coordinator_epoch} has served since",
            )
        is_news = (marker.producer_epoch, marker.coordinator_epoch) != (epoch, coordinator_epoch)
        return current is not None or is_news

    def expect(self, producer_id: int) -> Expectation:
        """Expect a first batch of this producer, until a marker of it comes."""
        if self._expected is None:
            self._expected = WeakValueDictionary()
        expected = self._expected.get(producer_id)
        if expected is None:
            expected = self._expected[producer_id] = Expectation()
        return expected

    def has_open(self, producer_id: int, epoch: int) -> bool:
        current = self.open.get(producer_id)
        return current is not None and current.epoch == epoch

    # ---- what has come ------------------------------------------------------------------------------------------

    def take_data(self, header: BatchHeader, base_offset: int, coordinator_epoch: int) -> None:
        if self.take_batch(header, base_offset, coordinator_epoch):
            self.first_unstable_offset = min(self.first_unstable_offset, base_offset)

    def take_marker(self, marker: EndMarker, offset: int) -> OpenTransaction | None:
        """Record a marker. Return the transaction that it ends, or None."""
        ended = self.end_by(marker, offset)
        if ended is None:
            return None
        self._ended.append(ended)
        self._undurable.append(ended)
        if ended.aborted is not None:
            self._aborted.append(ended.aborted)
        return ended.before

    def became_durable(self, high_watermark: int) -> None:
        """Let markers below the high watermark count for readers."""
        undurable = self._undurable
        while undurable and undurable[0].marker_offset < high_watermark:
            undurable.popleft()
        self.first_unstable_offset = min((self._first_open_offset(), *map(_first_offset, undurable)))

    def _first_open_offset(self) -> int:
        first = next(iter(self.open.values()), None)
        return NEVER if first is None else first.first_offset

    # ---- what segments tell -------------------------------------------------------------------------------------

    def open_at(self, end_offset: int) -> Sequence[OpenTransaction]:
        """Return the transactions open in a log that ends at this offset, in order of first offset."""
        later = self._ended[bisect_left(self._ended, end_offset, key=_marker_offset) :]
        candidates = [*self.open.values(), *(ended.before for ended in later)]
        return sorted((candidate for candidate in candidates if candidate.first_offset < end_offset), key=_first_offset)

    def aborted_by_markers(self, first_offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions of the tail with markers from `first_offset` to `end_offset` (exclusive)."""
        begin = bisect_left(self._aborted, first_offset, key=_marker_offset)
        return self._aborted[begin : bisect_left(self._aborted, end_offset, begin, key=_marker_offset)]

    def aborted_between(self, offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
        """Return the aborted transactions of the tail that have offsets from `offset` to `end_offset` (exclusive)."""
        if not self._aborted:
            return ()
        begin = bisect_left(self._aborted, offset, key=_marker_offset)
        return [transaction for transaction in self._aborted[begin:] if transaction.first_offset < end_offset]

    def flushed(self, end_offset: int) -> None:
        """Forget what segments tell, which is all before this offset."""
        if self._ended:
            del self._ended[: bisect_left(self._ended, end_offset, key=_marker_offset)]
            del self._aborted[: bisect_left(self._aborted, end_offset, key=_marker_offset)]

    def restore(self, open_transactions: Iterable[OpenTransaction]) -> None:
        self.begin_with(open_transactions)
        self._ended, self._aborted, self._undurable = [], [], deque()
        self.first_unstable_offset = self._first_open_offset()


def _older_epoch(producer_id: int, epoch: int, given: int) -> KafkaError:
    return KafkaError(INVALID_PRODUCER_EPOCH, f"producer {producer_id} has epoch {epoch}, this batch has {given}")
