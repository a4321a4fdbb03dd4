"""Where the last records of a topic begin, told by the footers of its last segments: no record is read for it."""

from __future__ import annotations

from collections.abc import Mapping

from kafscale.formats.segment import Footer
from kafscale.spark.bucket.catalog import Catalog, PartitionLog


def tail_offsets(catalog: Catalog, topic: str, count: int, partition: int | None = None) -> Mapping[int, int]:
    """Return by partition an offset from which on there are `count` records, or all if there are fewer.

    There may be more in a segment that compaction has made holes in. partition: of this one alone. Raises StoreError.
    """
    logs = catalog.partitions(topic)
    return {
        index: _start(catalog, log, count) for index, log in logs.items() if partition is None or index == partition
    }


def _start(catalog: Catalog, log: PartitionLog, count: int) -> int:
    end_offset = log.end_offset
    for segment in reversed(log.segments):
        footer = catalog.footers([segment.key]).get(segment.key)
        if footer is None:
            continue  # damaged: the query that reads these offsets tells
        is_dense = footer.record_count == footer.last_offset + 1 - segment.base_offset
        available = _available(footer, segment.base_offset, end_offset, is_dense=is_dense)
        if available >= count:
            return min(end_offset, footer.last_offset + 1) - count if is_dense else segment.base_offset
        count -= available
        end_offset = min(end_offset, segment.base_offset)
    return log.start_offset


def _available(footer: Footer, base_offset: int, end_offset: int, *, is_dense: bool) -> int:
    """Records before `end_offset`, at least. How many of a segment with holes are behind it, it does not tell."""
    if is_dense:
        return min(end_offset, footer.last_offset + 1) - base_offset
    return footer.record_count if footer.last_offset < end_offset else 0
