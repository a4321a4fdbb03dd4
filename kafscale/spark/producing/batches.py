"""Encoded records to record batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import attrs
import numpy as np
from numpy.typing import NDArray

from kafscale.spark.producing.records import RECORD_OVERHEAD_BYTES, encode_records
from kafscale.spark.producing.rows import Rows
from kafscale.spark.producing.transaction import WriterIdentity
from kafscale.wire import compression
from kafscale.wire.batch_header import MAGIC, MAX_SEQUENCE, TRANSACTIONAL, BatchHeader, encode_batch

Numbers = NDArray[np.int64]


@attrs.define(eq=False, kw_only=True, repr=False)
class RowBatch:
    """A batch of one partition and its rows. `until`: when to give it up, by `time.monotonic`."""

    topic: str
    partition: int
    base_sequence: int
    data: bytearray
    rows: Rows
    order: Numbers
    until: float
    """When to give it up, by the clock of `time.monotonic`."""

    @property
    def at(self) -> tuple[str, int]:
        return self.topic, self.partition

    @property
    def record_count(self) -> int:
        return len(self.order)


@attrs.frozen(kw_only=True, eq=False)
class EncodedPiece:
    """The encoded records of these rows, which become a batch."""

    partition: int
    records: memoryview
    order: Numbers


def pieces_of(rows: Rows, partitions: Numbers, batch_bytes: int) -> Iterator[EncodedPiece]:
    """Yield the records of each batch: of one partition, in order, up to a size in bytes."""
    small = partitions.astype(np.uint16) if int(partitions.max()) < 1 << 16 else partitions  # sorted by counting
    order = np.argsort(small, kind="stable")
    ends = np.cumsum(rows.payload_bytes[order] + RECORD_OVERHEAD_BYTES)
    bounds = [(part, start, end) for part, first, last in _runs(partitions[order])
              for start, end in _cut(ends, first, last, batch_bytes)]  # fmt: skip
    counts = np.array([end - start for _, start, end in bounds])
    deltas = np.arange(len(order)) - np.repeat([start for _, start, _ in bounds], counts)
    encoded = encode_records(rows, order, deltas)
    for partition, start, end in bounds:
        yield EncodedPiece(partition=partition, records=encoded.records(start, end), order=order[start:end])


def halves_of(batch: RowBatch) -> Iterator[EncodedPiece]:
    middle = batch.record_count // 2
    for order in (batch.order[:middle], batch.order[middle:]):
        encoded = encode_records(batch.rows, order, np.arange(len(order)))
        yield EncodedPiece(partition=batch.partition, records=encoded.records(0, len(order)), order=order)


def encode(
    piece: EncodedPiece,
    identity: WriterIdentity,
    base_sequence: int,
    *,
    codec: int,
    timestamp_ms: int,
    is_transactional: bool = False,
) -> bytearray:
    """Return a batch, compressed by a codec of `kafscale.wire.compression`."""
    records = piece.records if codec == compression.NONE else compression.compress(codec, piece.records)
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=codec | TRANSACTIONAL if is_transactional else codec,
        last_offset_delta=len(piece.order) - 1,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=base_sequence,
        record_count=len(piece.order),
    )
    return encode_batch(header, records)


def next_sequence(base_sequence: int, record_count: int) -> int:
    """Return the sequence behind these records; 0 follows the greatest one."""
    return (base_sequence + record_count) & MAX_SEQUENCE


def _runs(partitions: Numbers) -> Iterator[tuple[int, int, int]]:
    bounds = np.flatnonzero(np.diff(partitions, prepend=-1, append=-1))
    for start, end in pairwise(bounds):
        yield int(partitions[start]), int(start), int(end)


def _cut(ends: Numbers, first: int, last: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    start = first
    while start < last:
        before = int(ends[start - 1]) if start else 0
        end = min(last, max(start + 1, int(np.searchsorted(ends, before + size_bytes, side="right"))))
        yield start, end
        start = end
