"""Batches whose records have been seen before, but for their timestamps and what is in keys, values and headers.

A producer that sends the same kind of record sends the same kind of batch. Where a batch has as many records and bytes
as one that was found to be whole, and the bytes between its keys, values and headers are the same, it is whole as well:
no length in it has to be read. One `struct` call picks all these bytes, and one comparison ends it: 1 us for 1 record
where a look at each takes 3, and 2 us for 16 where it takes 10 (`docs/decisions/0008-record-checks-by-columns.md`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import attrs

from kafscale.buffers import Buffer
from kafscale.wire.batch_header import CODEC_MASK, HEADER_BYTES, BatchHeader
from kafscale.wire.primitives import read_uvarint
from kafscale.wire.record_check import NO_TIMESTAMP_MS, stamp_range

MAX_COUNT: Final = 64  # whose offset deltas have one byte; the columns of more are faster
MAX_RUNS: Final = 512
MAX_SHAPES: Final = 512  # some 4 KiB each at most
MAX_SEEN_ONCE: Final = 1024

Times: TypeAlias = tuple[int, int | None]
"""The latest timestamp of some records, -1 if none has one, and the earliest of those that have."""


@attrs.frozen(eq=False, repr=False)
class BatchShape:
    """Common bytes of the records of batches with one size and layout."""

    pick: Callable[[Buffer], tuple[bytes, ...]]  # of a batch: what is between keys, values and headers
    template: bytes  # the same, joined, with timestamp deltas of 0
    stamps: slice  # where in that they are, of a byte each
    has_keys: bool

    def stamps_of(self, picked: bytes) -> bytes | None:
        """Return the timestamp deltas, in zigzag form; None if the records are others."""
        stamps = picked[self.stamps]
        expected = bytearray(self.template)
        expected[self.stamps] = stamps
        return stamps if picked == expected else None


@attrs.define(eq=False, repr=False)
class Shapes:
    """The shapes of late, found by the size and number of a batch's records. Made at the second sight of one."""

    _known: dict[tuple[int, int], BatchShape] = attrs.field(factory=dict, init=False)
    _seen_once: set[tuple[int, int]] = attrs.field(factory=set, init=False)

    def times(self, header: BatchHeader, batch: Buffer, *, needs_keys: bool) -> Times | None:
        """Return the times of a batch's records if their shape is known: then they are whole. None of all others."""
        key = len(batch), header.record_count
        shape = self._known.get(key)
        if shape is None or header.attributes & CODEC_MASK or (needs_keys and not shape.has_keys):
            return None
        picked, base_ms = b"".join(shape.pick(batch)), header.base_timestamp_ms
        if picked == shape.template and base_ms >= 0:  # nearly always so, where a batch is made within a millisecond
            return base_ms, base_ms
        stamps = shape.stamps_of(picked)
        if stamps is None:
            del self._known[key]
            return None
        between = stamp_range(stamps, NO_TIMESTAMP_MS - base_ms)
        if between is None:
            return None
        least, greatest = between
        return max(base_ms + greatest, NO_TIMESTAMP_MS), None if least > greatest else base_ms + least

    def learn(self, header: BatchHeader, batch: Buffer) -> None:
        """Take note of a batch that was found to be whole, with nothing compressed in it."""
        key = size_bytes, count = len(batch), header.record_count
        if count > MAX_COUNT or (size_bytes - HEADER_BYTES) % count:
            return
        if key not in self._seen_once:
            if len(self._seen_once) == MAX_SEEN_ONCE:
                self._seen_once.clear()
            self._seen_once.add(key)
            return
        self._seen_once.discard(key)
        shape = _shape(batch, count)
        if shape is not None:
            if len(self._known) == MAX_SHAPES:
                del self._known[next(iter(self._known))]
            self._known[key] = shape


def _shape(batch: Buffer, count: int) -> BatchShape | None:
    """Return what these records, which are whole, have in common; None if they are not alike, or their stamps long."""
    size = (len(batch) - HEADER_BYTES) // count
    length, attributes = read_uvarint(batch, HEADER_BYTES)
    stamp = attributes + 1 - HEADER_BYTES  # where it is in a record
    if stamp - 1 + (length >> 1) != size or batch[attributes + 1] >= 128:
        return None
    runs = list(_runs(batch, attributes + 3, HEADER_BYTES + size))
    if count * len(runs) > MAX_RUNS:
        return None
    head = bytearray(b"".join(batch[start:end] for start, end in runs))
    head[stamp] = 0
    template = bytearray(head * count)
    template[stamp + 1 :: len(head)] = bytes(range(0, 2 * count, 2))
    pick = struct.Struct(_format(runs, size, count)).unpack
    shape = BatchShape(pick, bytes(template), slice(stamp, None, len(head)), not batch[attributes + 3] & 1)
    return None if shape.stamps_of(b"".join(pick(batch))) is None else shape


def _runs(batch: Buffer, position: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where the first record, whose key is at `position`, has anything else than keys, values and headers."""
    start, fields, is_headers = HEADER_BYTES, 2, False
    while fields:
        for _ in range(fields):
            size, position = read_uvarint(batch, position)
            if size > 1 and not size & 1:
                yield start, position
                start = position = position + (size >> 1)
        if is_headers:
            break
        fields, position = read_uvarint(batch, position)  # the number of headers, doubled as by zigzag
        is_headers = True
    if start < end:
        yield start, end


def _format(runs: list[tuple[int, int]], size: int, count: int) -> str:
    """Return the `struct` format that picks these bytes of a batch's first record, and the same of each other."""
    parts, position = [], 0
    for first in range(0, count * size, size):
        for start, end in runs:
            parts.append(f"{first + start - position}x{end - start}s")
            position = first + end
    return "".join(parts) + f"{HEADER_BYTES + count * size - position}x"
