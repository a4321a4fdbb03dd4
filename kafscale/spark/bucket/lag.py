"""How far a stream is behind what the bucket holds, from the offsets that it has read up to."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kafscale.spark.bucket.catalog import Catalog, PartitionLog
from kafscale.spark.bucket.splits import Extent, size_bytes
from kafscale.spark.bucket.subscription import TopicPartition


@attrs.frozen(kw_only=True)
class PartitionLag:
    """A partition was read up to `offset`, exclusive; the bucket has it up to `end_offset`, also exclusive.

    bytes_behind: of the batches in between, as they are stored; the one that `offset` is in counts as a whole.
    """

    offset: int
    end_offset: int
    bytes_behind: int

    @property
    def offsets_behind(self) -> int:
        """Return how many offsets the stream is behind: as many records, or fewer where compaction has left holes."""
        return max(0, self.end_offset - self.offset)


@attrs.frozen(kw_only=True)
class QueryLag:
    """The lag of one streaming query, after one of its batches. `query_name` is None for a query without one."""

    query_id: str
    query_name: str | None
    batch_id: int
    partitions: Mapping[TopicPartition, PartitionLag]

    @property
    def records_behind(self) -> int:
        """Return how many records the query is behind in all partitions, or fewer where compaction has left holes."""
        return sum(each.offsets_behind for each in self.partitions.values())

    @property
    def bytes_behind(self) -> int:
        """Return how many bytes the query is behind in all partitions, as they are stored."""
        return sum(each.bytes_behind for each in self.partitions.values())


def measure(catalog: Catalog, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, PartitionLag]:
    """Measure the lag of the partitions that the bucket knows. It takes a listing for each topic and a few indexes.

    Raises StoreError.
    """
    catalog.look_again()
    logs = {topic: catalog.partitions(topic) for topic in sorted({topic for topic, _ in offsets})}
    return {
        (topic, index): _measure(catalog, logs[topic][index], offset)
        for (topic, index), offset in offsets.items()
        if index in logs[topic]
    }


def _measure(catalog: Catalog, log: PartitionLog, offset: int) -> PartitionLag:
    start_offset = max(offset, log.start_offset)
    bytes_behind = 0
    if start_offset < log.end_offset:
        bytes_behind = size_bytes(catalog, Extent(log=log, start_offset=start_offset, end_offset=log.end_offset))
    return PartitionLag(offset=offset, end_offset=log.end_offset, bytes_behind=bytes_behind)
