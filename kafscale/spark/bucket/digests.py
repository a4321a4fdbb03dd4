"""CRCs of what a partition has between two offsets, by which it is told to be the same later.

A batch stays what it is when segments are merged, and when one of the log is flushed. So the CRC-32C of the bytes of
all batches between two offsets stays, too, until compaction rewrites them. Footers have it of each segment, and those
of neighbours are put together without reading either.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import attrs
import numpy as np
from crc32c import crc32c

from kafscale.formats.segment_v1 import VERSION as VERSION_1
from kafscale.spark.bucket.batches import BatchHeaders
from kafscale.spark.bucket.bucket import get_part
from kafscale.spark.bucket.catalog import Catalog, PartitionLog
from kafscale.spark.bucket.log_ranges import LoggedRanges
from kafscale.spark.bucket.splits import Extent, LogRange, Range, plan

GET_BYTES = 16 << 20
POLYNOMIAL = 0x82F63B78  # of CRC-32C, reversed

Matrix = tuple[int, ...]  # a column for each bit


@attrs.frozen
class Digest:
    """The CRC-32C of the batches that hold the offsets from `start_offset` to `end_offset`, which is exclusive."""

    start_offset: int
    end_offset: int
    crc: int


def of_footers(catalog: Catalog, log: PartitionLog, start_offset: int, end_offset: int) -> Digest | None:
    """Return what footers tell of the segments that end between two offsets; None if there are none.

    The first may begin before them. Those behind one whose footer can't be read are left out. Raises StoreError.
    """
    ending = [each for each in log.segments if start_offset <= each.last_offset < end_offset]
    footers = catalog.footers(each.key for each in ending)
    found: Digest | None = None
    for segment in ending:
        footer = footers.get(segment.key)
        is_next = found is None or segment.base_offset == found.end_offset
        if footer is None or footer.version == VERSION_1 or not is_next:
            break
        crc, behind = footer.identity.body_crc, footer.last_offset + 1
        if found is None:
            found = Digest(segment.base_offset, behind, crc)
        else:
            found = Digest(found.start_offset, behind, combined(found.crc, crc, footer.identity.body_bytes))
    return found


def of_batches(catalog: Catalog, log: PartitionLog, start_offset: int, end_offset: int) -> Digest:
    """Return it by reading all batches. Raises DamagedObject, NotFound, StoreError; CorruptBatch."""
    crc, next_offset = 0, start_offset
    logged = LoggedRanges(catalog.bucket)
    for split in plan(catalog, [Extent(log=log, start_offset=start_offset, end_offset=end_offset)]):
        logged.expect([split])
        for range in split.ranges:
            if isinstance(range, Range):
                pieces = _read(catalog, range)
            elif isinstance(range, LogRange):
                pieces = iter([BatchHeaders.of(logged.read(range))])
            else:
                continue  # at brokers, where no CRC was taken
            for headers in pieces:
                kept = np.flatnonzero((headers.base_offsets >= next_offset) & (headers.next_offsets <= end_offset))
                for start, end in zip(headers.starts[kept].tolist(), headers.ends[kept].tolist(), strict=True):
                    crc = crc32c(headers.data[start:end], crc)
                if len(kept):
                    next_offset = int(headers.next_offsets[kept[-1]])
    return Digest(start_offset, next_offset, crc)


def was_compacted(catalog: Catalog, log: PartitionLog, start_offset: int, end_offset: int) -> bool:
    """Tell whether compaction has written any of what is there between two offsets. Raises StoreError."""
    there = [each.key for each in log.segments if each.last_offset >= start_offset and each.base_offset < end_offset]
    footers = catalog.footers(there)
    return any(key in footers and footers[key].first_dirty_offset > start_offset for key in there)


def _read(catalog: Catalog, range: Range) -> Iterator[BatchHeaders]:
    position, get_bytes = range.start, GET_BYTES
    while position < range.end:
        data = get_part(catalog.bucket, range.key.key, position, min(get_bytes, range.end - position))
        headers = BatchHeaders.of(data)
        whole = headers.whole()
        if not whole.count:
            if not headers.cut_bytes or get_bytes >= headers.cut_bytes:
                return  # cut off: the offsets that are reached tell
            get_bytes = headers.cut_bytes
            continue
        yield whole
        position, get_bytes = position + whole.whole_bytes, GET_BYTES


# ---- CRCs of what is joined ------------------------------------------------------------------------------------------


def combined(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC-32C of two runs of bytes, one behind the other, from those of each and the length of the second.

    A CRC is linear: that of the first is carried over as many zeros, which a matrix over bits does for any power of 2.
    """
    for power in range(second_bytes.bit_length()):
        if second_bytes >> power & 1:
            first = _times(_zeros(power), first)
    return first ^ second


@cache
def _zeros(power: int) -> Matrix:
    """Return what carries a CRC over 2 ** `power` bytes of zeros."""
    if power:
        half = _zeros(power - 1)
        return tuple(_times(half, column) for column in half)
    matrix: Matrix = (POLYNOMIAL, *(1 << bit for bit in range(31)))  # over a bit
    for _ in range(3):
        matrix = tuple(_times(matrix, column) for column in matrix)
    return matrix


def _times(matrix: Matrix, vector: int) -> int:
    product = 0
    for column in matrix:
        if not vector:
            break
        if vector & 1:
            product ^= column
        vector >>= 1
    return product
