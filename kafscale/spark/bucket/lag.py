"""The lag of a stream behind the bucket, from the offsets that it has read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from kafscale.spark.bucket.catalog import Catalog, PartitionLog
from kafscale.spark.bucket.position import TopicPartition
from kafscale.spark.bucket.splits import Extent, first_time_ms, size_bytes
from kafscale.wire.client_rules import lag


@attrs.frozen(kw_only=True)
class PartitionLag:
    """The lag of a partition that was read up to `offset`, exclusive, and ends at `end_offset`, also exclusive.

    log_start_offset: records below it were deleted, and do not count.
    bytes_behind: the stored size of the unread batches; the batch of `offset` counts as a whole.
    unread_ms: the latest time of the first few unread batches; None without any, or if brokers have them.
    """

    offset: int
    end_offset: int
    bytes_behind: int
    log_start_offset: int = 0
    unread_ms: int | None = None

    @property
    def offsets_behind(self) -> int:
        return lag(self.offset, log_start_offset=self.log_start_offset, end_offset=self.end_offset)

    def seconds_behind(self, now_ms: int) -> float:
        """Return the age of the first unread records, less the time in which a few batches came; 0 without any."""
        return 0.0 if self.unread_ms is None else max(0, now_ms - self.unread_ms) / 1000


@attrs.frozen(kw_only=True)
class QueryLag:
    """The lag of a streaming query after one of its batches. metrics: of the source, from Spark 4.2 on."""

    query_id: str
    query_name: str | None
    batch_id: int
    partitions: Mapping[TopicPartition, PartitionLag]
    measured_ms: int = 0
    metrics: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def description(self) -> str:
        return described(topic for topic, _ in self.partitions)

    @property
    def records_behind(self) -> int:
        """Return the number of unread offsets in all partitions."""
        return sum(partition.offsets_behind for partition in self.partitions.values())

    @property
    def bytes_behind(self) -> int:
        return sum(partition.bytes_behind for partition in self.partitions.values())

    @property
    def seconds_behind(self) -> float:
        return max((partition.seconds_behind(self.measured_ms) for partition in self.partitions.values()), default=0.0)


def described(topics: Iterable[str]) -> str:
    """Return the description of these topics, as Spark's Kafka source has it in a query's progress."""
    return f"KafScale[{', '.join(sorted(set(topics)))}]"


def measure(catalog: Catalog, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, PartitionLag]:
    """Measure the lag of the partitions that the bucket knows. Raises StoreError."""
    catalog.look_again()
    logs = {topic: catalog.partitions(topic) for topic in sorted({topic for topic, _ in offsets})}
    return {
        (topic, index): lag_behind(catalog, logs[topic][index], offset)
        for (topic, index), offset in offsets.items()
        if index in logs[topic]
    }


def lag_behind(catalog: Catalog, log: PartitionLog, offset: int, end_offset: int | None = None) -> PartitionLag:
    """Measure the lag of an offset behind a partition's end, or behind `end_offset`. Raises StoreError."""
    start_offset, end_offset = max(offset, log.start_offset), log.end_offset if end_offset is None else end_offset
    if start_offset >= end_offset:
        return PartitionLag(offset=offset, end_offset=end_offset, bytes_behind=0, log_start_offset=log.start_offset)
    extent = Extent(log=log, start_offset=start_offset, end_offset=end_offset)
    return PartitionLag(
        offset=offset,
        end_offset=end_offset,
        bytes_behind=size_bytes(catalog, extent),
        log_start_offset=log.start_offset,
        unread_ms=first_time_ms(catalog, extent),
    )
