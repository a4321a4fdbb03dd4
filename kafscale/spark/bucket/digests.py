"""CRCs of a partition between two offsets, which show later that it still is the same.

Merging segments and flushing the log keep batches as they are, so the CRC-32C of all batches between two offsets stays,
until compaction rewrites them. Footers have it for each segment; those of neighbours are combined without reading
either.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import attrs
import numpy as np
from crc32c import crc32c

from kafscale.formats.segment_v1 import VERSION as VERSION_1
from kafscale.spark.bucket.batches import BatchHeaders
from kafscale.spark.bucket.catalog import Catalog, PartitionLog
from kafscale.spark.bucket.reading import LoggedRanges, batches_in
from kafscale.spark.bucket.splits import Extent, LogRange, SplitRange, plan

POLYNOMIAL = 0x82F63B78  # of CRC-32C, reversed

Matrix = tuple[int, ...]  # a column for each bit


@attrs.frozen
class RangeDigest:
    """The CRC-32C of the batches with the offsets from `start_offset` to `end_offset`, which is exclusive."""

    start_offset: int
    end_offset: int
    crc: int


def of_footers(catalog: Catalog, log: PartitionLog, start_offset: int, end_offset: int) -> RangeDigest | None:
    """Return the digest of the segments that end between two offsets, by footers; None without such a segment.

    The first may begin before them. Segments behind an unreadable footer are left out. Raises StoreError.
    """
    ending = [segment for segment in log.segments if start_offset <= segment.last_offset < end_offset]
    footers = catalog.footers(segment.key for segment in ending)
    found: RangeDigest | None = None
    for segment in ending:
        footer = footers.get(segment.key)
        is_next = found is None or segment.base_offset == found.end_offset
        if footer is None or footer.version == VERSION_1 or not is_next:
            break
        crc, behind = footer.identity.body_crc, footer.last_offset + 1
        if found is None:
            found = RangeDigest(segment.base_offset, behind, crc)
        else:
            found = RangeDigest(found.start_offset, behind, combined(found.crc, crc, footer.identity.body_bytes))
    return found


def of_batches(catalog: Catalog, log: PartitionLog, start_offset: int, end_offset: int) -> RangeDigest:
    """Compute the digest by reading all batches. Raises DamagedObject, NotFound, StoreError; CorruptBatch."""
    crc, next_offset = 0, start_offset
    logged = LoggedRanges(catalog.bucket)
    for split in plan(catalog, [Extent(log=log, start_offset=start_offset, end_offset=end_offset)]):
        logged.expect([split])
        for range in split.ranges:
            pieces: Iterable[BatchHeaders]
            if isinstance(range, SplitRange):
                pieces = batches_in(catalog.bucket, range)
            elif isinstance(range, LogRange):
                pieces = [BatchHeaders.of(logged.read(range))]
            else:
                continue  # at brokers, where no CRC was taken
            for headers in pieces:
                kept = np.flatnonzero((headers.base_offsets >= next_offset) & (headers.next_offsets <= end_offset))
                for start, end in zip(headers.starts[kept].tolist(), headers.ends[kept].tolist(), strict=True):
                    crc = crc32c(headers.data[start:end], crc)
                if len(kept):
                    next_offset = int(headers.next_offsets[kept[-1]])
    return RangeDigest(start_offset, next_offset, crc)


def was_compacted(catalog: Catalog, log: PartitionLog, start_offset: int, end_offset: int) -> bool:
    there = [
        segment.key
        for segment in log.segments
        if segment.last_offset >= start_offset and segment.base_offset < end_offset
    ]
    footers = catalog.footers(there)
    return any(key in footers and footers[key].first_dirty_offset > start_offset for key in there)


# ---- joined CRCs -----------------------------------------------------------------------------------------------------


def combined(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC-32C of two runs of bytes, one behind the other, from their CRCs and the second's length.

    A CRC is linear: the first one is carried over as many zeros, by a matrix over bits for each power of 2.
    """
    for power in range(second_bytes.bit_length()):
        if second_bytes >> power & 1:
            first = _times(_zeros(power), first)
    return first ^ second


@cache
def _zeros(power: int) -> Matrix:
    """Return the matrix that carries a CRC over 2 ** `power` bytes of zeros."""
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
