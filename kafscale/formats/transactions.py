"""Producers and transactions in footers and at the log's end, and how batches change them (KIP-98, KIP-664).

    aborted       i64 producer id | i64 first offset | i64 marker offset | i64 last stable offset
    open          i64 producer id | i16 epoch | i64 first offset | i32 coordinator epoch
    coordinator   i64 producer id | i32 coordinator epoch

The first batch of a producer's transaction opens it. Its marker, a control batch of the coordinator, ends it as
committed or aborted. Committed transactions are not stored: their records are like all others. Offsets below the first
offset of the oldest open transaction are decided; `read_committed` readers stop there. The broker and readers of the
bucket share this code. Pure and synchronous, like Kafka's ProducerStateManager.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, Protocol

import attrs

from kafscale.buffers import Buffer
from kafscale.wire.control_records import EndMarker

NO_COORDINATOR_EPOCH: Final = -1
NO_SEQUENCE: Final = -1


@attrs.define(eq=True)
class ProducedBatch:
    """A batch that was ordered: its sequence numbers and the offsets it got.

    A transaction's marker that began a new epoch is among a producer's batches too, with NO_SEQUENCE: what follows it
    begins with sequence 0.
    """

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


@attrs.define(eq=True)
class Producer:
    """One producer id: its epoch, its latest batches (oldest first) and when it was last heard of.

    `due_sequence` is that of a batch which was refused and will be sent again, of a producer without batches.
    `coordinator_epoch` is that of the latest marker of a transaction of this producer.
    """

    producer_id: int
    epoch: int
    batches: list[ProducedBatch]
    last_timestamp_ms: int
    due_sequence: int | None = None
    coordinator_epoch: int = NO_COORDINATOR_EPOCH


_ABORTED = struct.Struct(">qqqq")
_OPEN = struct.Struct(">qhqi")
_COORDINATOR = struct.Struct(">qi")

_first_offset = attrgetter("first_offset")


@attrs.frozen
class AbortedTransaction:
    """A producer's transactional batches from `first_offset` up to its marker were aborted.

    `stable_offset` is the end of the decided offsets when the marker was written: transactions aborted later begin
    there or behind it.
    """

    producer_id: int
    first_offset: int
    marker_offset: int
    stable_offset: int

    def overlaps(self, offset: int, end_offset: int) -> bool:
        """Tell whether any of its offsets, its marker's too, is from `offset` on and before `end_offset`."""
        return self.marker_offset >= offset and self.first_offset < end_offset


@attrs.frozen
class OpenTransaction:
    """A transaction that has no marker yet.

    `epoch` is that of its producer, `coordinator_epoch` that of the latest marker of an earlier one; -1 if there was
    none.
    """

    producer_id: int
    epoch: int
    first_offset: int
    coordinator_epoch: int = NO_COORDINATOR_EPOCH


def stable_end(open_transactions: Iterable[OpenTransaction], end_offset: int) -> int:
    """Return the end of the decided offsets of a log ending at `end_offset` (exclusive) with these open."""
    return min(map(_first_offset, open_transactions), default=end_offset)


def encode_aborted(aborted: Iterable[AbortedTransaction]) -> bytes:
    """The payload of the section of aborted transactions."""
    return b"".join(
        _ABORTED.pack(
            transaction.producer_id, transaction.first_offset, transaction.marker_offset, transaction.stable_offset
        )
        for transaction in aborted
    )


def decode_aborted(payload: Buffer) -> tuple[AbortedTransaction, ...]:
    """Raises struct.error."""
    return tuple(AbortedTransaction(*row) for row in _ABORTED.iter_unpack(payload))


def encode_open(transactions: Iterable[OpenTransaction]) -> bytes:
    """The payload of the section of open transactions."""
    return b"".join(
        _OPEN.pack(transaction.producer_id, transaction.epoch, transaction.first_offset, transaction.coordinator_epoch)
        for transaction in transactions
    )


def decode_open(payload: Buffer) -> tuple[OpenTransaction, ...]:
    """Raises struct.error."""
    return tuple(OpenTransaction(*row) for row in _OPEN.iter_unpack(payload))


def encode_coordinators(producers: Iterable[Producer]) -> bytes:
    """The payload of the section of coordinator epochs: those of the producers that have one."""
    return b"".join(
        _COORDINATOR.pack(producer.producer_id, producer.coordinator_epoch)
        for producer in producers
        if producer.coordinator_epoch != NO_COORDINATOR_EPOCH
    )


def decode_coordinators(payload: Buffer) -> Mapping[int, int]:
    """Coordinator epochs by producer id. Raises struct.error."""
    return dict(_COORDINATOR.iter_unpack(payload))


def with_coordinators(producers: Sequence[Producer], coordinators: Mapping[int, int]) -> Sequence[Producer]:
    """Give producers that were just decoded their coordinator epochs."""
    for producer in producers if coordinators else ():
        producer.coordinator_epoch = coordinators.get(producer.producer_id, NO_COORDINATOR_EPOCH)
    return producers


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
        """Return the end of the decided offsets of a log that ends at `end_offset` (exclusive)."""
        oldest = next(iter(self.open.values()), None)
        return end_offset if oldest is None else min(oldest.first_offset, end_offset)
