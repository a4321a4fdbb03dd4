"""Checks of batches by the shape of earlier ones, which producers repeat but for timestamps, keys, values and headers.

A batch with the record count and size of a valid one, and the same bytes between keys, values and headers, is valid:
one `struct` call picks these bytes, and one comparison checks them. That takes 1 us for 1 record instead of 3, and 2 us
for 16 instead of 10 (`docs/decisions/0008-record-checks-by-columns.md`).
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
    pick: Callable[[Buffer], tuple[bytes, ...]]  # of a batch: what is between keys, values and headers
    template: bytes  # the same, joined, with timestamp deltas of 0
    stamps: slice  # where in that they are, of a byte each
    has_keys: bool

    def stamps_of(self, picked: bytes) -> bytes | None:
        """Return the timestamp deltas, zigzag-encoded; None if the records have another shape."""
        stamps = picked[self.stamps]
        expected = bytearray(self.template)
        expected[self.stamps] = stamps
        return stamps if picked == expected else None


@attrs.define(eq=False, repr=False)
class Shapes:
    """Recent shapes by size and record count; a shape is remembered when it is seen the second time."""

    _known: dict[tuple[int, int], BatchShape] = attrs.field(factory=dict, init=False)
    _seen_once: set[tuple[int, int]] = attrs.field(factory=set, init=False)

    def times(self, header: BatchHeader, batch: Buffer, *, needs_keys: bool) -> Times | None:
        """Return the times of a batch whose shape is known, and which is therefore valid; else None."""
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
        """Remember the shape of a valid, uncompressed batch."""
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
    """Return the shape of valid records; None if they differ, or their timestamp deltas are long."""
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
    """Yield the bytes of the first record, whose key is at `position`, outside of keys, values and headers."""
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
    parts, position = [], 0
    for first in range(0, count * size, size):
        for start, end in runs:
            parts.append(f"{first + start - position}x{end - start}s")
            position = first + end
    return "".join(parts) + f"{HEADER_BYTES + count * size - position}x"
