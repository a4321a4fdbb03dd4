"""Finds the beginning of a topic's last records, by the footers of its last segments and the log behind them.

Records are read only where producers write transactions: footers count markers and aborted records too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import attrs

from kafscale.formats.segment import Footer
from kafscale.formats.transactions import NO_COORDINATOR_EPOCH
from kafscale.spark.bucket.catalog import Catalog, PartitionLog
from kafscale.spark.bucket.reading import SplitReader
from kafscale.spark.bucket.splits import Extent, plan


def tail_offsets(catalog: Catalog, topic: str, count: int, partition: int | None = None) -> Mapping[int, int]:
    """Return by partition an offset with `count` records from there on, or all if there are fewer.

    There may be more in a segment with holes by compaction. partition: of this one alone. Raises StoreError.
    """
    logs = catalog.partitions(topic)
    return {
        index: _start(catalog, log, count) for index, log in logs.items() if partition is None or index == partition
    }


def _start(catalog: Catalog, log: PartitionLog, count: int) -> int:
    end_offset, has_transactions = log.end_offset, False
    if not count:
        return end_offset
    if log.behind is not None and log.behind.base_offset < end_offset:
        found = _Read(catalog, log).last_offsets(log.behind.base_offset, end_offset, count)
        if len(found) >= count:
            return found[-count]
        count, end_offset = count - len(found), log.behind.base_offset
    for batch in reversed(log.tail.batches):
        available = 0 if batch.header is not None else min(end_offset, batch.next_offset) - batch.base_offset
        if available >= count:
            return min(end_offset, batch.next_offset) - count
        count -= max(0, available)
        end_offset = min(end_offset, batch.base_offset)
    for segment in reversed(log.segments):
        footer = catalog.footers([segment.key]).get(segment.key)
        if footer is None:
            continue  # damaged: the query that reads these offsets tells
        has_transactions = has_transactions or _has_transactions(footer)
        if has_transactions:
            found = _Tail(_Read(catalog, log), footer).last_offsets(end_offset, count)
            available = len(found)
            if found and available >= count:
                return found[0]
        else:
            is_dense = footer.record_count == footer.last_offset + 1 - segment.base_offset
            available = _available(footer, segment.base_offset, end_offset, is_dense=is_dense)
            if available >= count:
                return min(end_offset, footer.last_offset + 1) - count if is_dense else segment.base_offset
        count -= available
        end_offset = min(end_offset, segment.base_offset)
    return log.earliest_offset


def _available(footer: Footer, base_offset: int, end_offset: int, *, is_dense: bool) -> int:
    """Return the least number of records before `end_offset`; a segment with holes does not tell more."""
    if is_dense:
        return min(end_offset, footer.last_offset + 1) - base_offset
    return footer.record_count if footer.last_offset < end_offset else 0


def _has_transactions(footer: Footer) -> bool:
    """Tell whether a segment, or one before it, may have transactions, as far as it remembers its producers."""
    return bool(footer.aborted) or any(
        producer.coordinator_epoch != NO_COORDINATOR_EPOCH for producer in footer.producers
    )


@attrs.frozen(eq=False, repr=False)
class _Tail:
    """The last records of one segment, found by reading back from its end."""

    read: _Read
    footer: Footer

    def last_offsets(self, end_offset: int, count: int) -> Sequence[int]:
        """Return the offsets of the last `count` records before `end_offset`, or of all if there are fewer."""
        found: list[int] = []
        row, rows_count = self.footer.row_of(end_offset - 1) + 1, 1
        while row and len(found) < count:
            first = max(0, row - rows_count)
            start_offset = max(self.footer.row_offset(first), self.read.log.start_offset)
            found = [*self.read.offsets(start_offset, end_offset), *found]
            row, rows_count, end_offset = first, 2 * rows_count, start_offset
        return found[-count:]


@attrs.frozen(eq=False, repr=False)
class _Read:
    """Offsets of existing records, by reading them."""

    catalog: Catalog
    log: PartitionLog

    def last_offsets(self, start_offset: int, end_offset: int, count: int) -> Sequence[int]:
        """Return the offsets of at least the last `count` records between two offsets, or of all."""
        found: list[int] = []
        width = count
        while start_offset < end_offset and len(found) < count:
            first = max(start_offset, end_offset - width)
            found = [*self.offsets(first, end_offset), *found]
            end_offset, width = first, 2 * width
        return found

    def offsets(self, start_offset: int, end_offset: int) -> Sequence[int]:
        reader = SplitReader(
            bucket=self.catalog.bucket,
            namespace=self.catalog.namespace,
            columns=["offset"],
            fail_on_data_loss=False,  # the query that reads these offsets tells
            committed_only=self.catalog.committed_only,
            with_log=self.catalog.with_log,
            brokers=self.catalog.brokers,
        )
        splits = plan(self.catalog, [Extent(log=self.log, start_offset=start_offset, end_offset=end_offset)])
        read = chain.from_iterable(map(reader.read, splits))
        return [offset for records in read for offset in records["offset"].to_pylist()]
