"""Transactions as footers and the log's end keep them (KIP-98, KIP-664). The rules are the partition's.

    aborted       i64 producer id | i64 first offset | i64 marker offset | i64 last stable offset
    open          i64 producer id | i16 epoch | i64 first offset | i32 coordinator epoch
    coordinator   i64 producer id | i32 coordinator epoch

A transaction ends with its marker, a control batch that says whether it was committed or aborted. Nothing is kept of
one that was committed: its records are like all others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

import attrs

from kafscale.buffers import Buffer
from kafscale.formats.producers import NO_COORDINATOR_EPOCH, Producer

_ABORTED = struct.Struct(">qqqq")
_OPEN = struct.Struct(">qhqi")
_COORDINATOR = struct.Struct(">qi")

_first_offset = attrgetter("first_offset")


@attrs.frozen
class AbortedTransaction:
    """A producer's transactional batches from `first_offset` up to its marker were aborted.

    `stable_offset` is the end of what was decided when the marker was written: whatever was aborted later begins there
    or behind it.
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
    """Return the end of what is decided of a log that ends at `end_offset` (exclusive) with these transactions open."""
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
