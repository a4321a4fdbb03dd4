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
from typing import Final

import attrs

from kafscale.buffers import Buffer
from kafscale.wire.batch_header import BatchHeader
from kafscale.wire.control_records import EndMarker

NO_COORDINATOR_EPOCH: Final = -1
NO_SEQUENCE: Final = -1


@attrs.define(eq=True)
class ProducedBatch:
    """An ordered batch: its sequence numbers and offsets.

    A transaction's marker is among a producer's batches too; if it began a new epoch, it has NO_SEQUENCE, and the next
    batch begins with sequence 0.
    """

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


@attrs.define(eq=True)
class Producer:
    """One producer id: its epoch, its latest batches (oldest first) and when it was last heard of.

    `due_sequence` is that of a refused batch that will be sent again. `coordinator_epoch` is that of the latest marker.
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

    `stable_offset` is the end of decided offsets at the marker: transactions aborted later begin there or behind it.
    """

    producer_id: int
    first_offset: int
    marker_offset: int
    stable_offset: int

    def overlaps(self, offset: int, end_offset: int) -> bool:
        """Tell whether it has offsets from `offset` to `end_offset` (exclusive)."""
        return self.marker_offset >= offset and self.first_offset < end_offset


@attrs.frozen
class OpenTransaction:
    """A transaction without a marker. `coordinator_epoch` is that of the producer's latest earlier marker, or -1."""

    producer_id: int
    epoch: int
    first_offset: int
    coordinator_epoch: int = NO_COORDINATOR_EPOCH


def stable_end(open_transactions: Iterable[OpenTransaction], end_offset: int) -> int:
    """Return the end of decided offsets in a log ending at `end_offset` (exclusive)."""
    return min(map(_first_offset, open_transactions), default=end_offset)


def encode_aborted(aborted: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(
        _ABORTED.pack(
            transaction.producer_id, transaction.first_offset, transaction.marker_offset, transaction.stable_offset
        )
        for transaction in aborted
    )


def decode_aborted(payload: Buffer) -> tuple[AbortedTransaction, ...]:
    return tuple(AbortedTransaction(*row) for row in _ABORTED.iter_unpack(payload))


def encode_open(transactions: Iterable[OpenTransaction]) -> bytes:
    return b"".join(
        _OPEN.pack(transaction.producer_id, transaction.epoch, transaction.first_offset, transaction.coordinator_epoch)
        for transaction in transactions
    )


def decode_open(payload: Buffer) -> tuple[OpenTransaction, ...]:
    return tuple(OpenTransaction(*row) for row in _OPEN.iter_unpack(payload))


def encode_coordinators(producers: Iterable[Producer]) -> bytes:
    return b"".join(
        _COORDINATOR.pack(producer.producer_id, producer.coordinator_epoch)
        for producer in producers
        if producer.coordinator_epoch != NO_COORDINATOR_EPOCH
    )


def decode_coordinators(payload: Buffer) -> Mapping[int, int]:
    """Decode coordinator epochs by producer id. Raises struct.error."""
    return dict(_COORDINATOR.iter_unpack(payload))


def with_coordinators(producers: Sequence[Producer], coordinators: Mapping[int, int]) -> Sequence[Producer]:
    for producer in producers if coordinators else ():
        producer.coordinator_epoch = coordinators.get(producer.producer_id, NO_COORDINATOR_EPOCH)
    return producers


@attrs.frozen
class Ended:
    """A transaction `before` its marker; `aborted` if the marker aborts it."""

    before: OpenTransaction
    marker_offset: int
    aborted: AbortedTransaction | None

    @property
    def first_offset(self) -> int:
        return self.before.first_offset


@attrs.define(eq=False, repr=False)
class OpenTransactions:
    """The open transactions, by producer id and in order of the first offset."""

    open: dict[int, OpenTransaction] = attrs.field(factory=dict, init=False)

    @classmethod
    def of(cls, transactions: Iterable[OpenTransaction]) -> OpenTransactions:
        begun = cls()
        begun.begin_with(transactions)
        return begun

    def begin_with(self, transactions: Iterable[OpenTransaction]) -> None:
        """Replace the open transactions."""
        self.open = {begun.producer_id: begun for begun in sorted(transactions, key=_first_offset)}

    def take_batch(self, header: BatchHeader, base_offset: int, coordinator_epoch: int = -1) -> bool:
        """Add a transactional batch; True if it opens a transaction."""
        current = self.open.get(header.producer_id)
        if current is None:
            opened = OpenTransaction(header.producer_id, header.producer_epoch, base_offset, coordinator_epoch)
            self.open[header.producer_id] = opened
        elif current.epoch != header.producer_epoch:
            self.open[header.producer_id] = attrs.evolve(current, epoch=header.producer_epoch)
        return current is None

    def end_by(self, marker: EndMarker, offset: int) -> Ended | None:
        """Add a marker. Return what it ends, or None."""
        before = self.open.pop(marker.producer_id, None)
        if before is None:
            return None
        aborted: AbortedTransaction | None = None
        if not marker.is_commit:
            stable_offset = self.stable_end(offset + 1)
            aborted = AbortedTransaction(marker.producer_id, before.first_offset, offset, stable_offset)
        return Ended(before, offset, aborted)

    def stable_end(self, end_offset: int) -> int:
        oldest = next(iter(self.open.values()), None)
        return end_offset if oldest is None else min(oldest.first_offset, end_offset)
