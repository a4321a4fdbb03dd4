"""The same offsets by this source and by Spark's Kafka source, row by row. This module imports pyspark."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from pyspark.sql import DataFrame, SparkSession

from kafscale.spark.bucket.position import range_options
from kafscale.spark.bucket.subscription import Logs, TopicPartition

SHOWN_COUNT = 3  # of rows that one of both lacks


@attrs.frozen(kw_only=True)
class Comparison:
    """rows: as this source reads them. only_kafscale, only_kafka: rows that the other lacks, and `shown` are some."""

    rows: int
    only_kafscale: int
    only_kafka: int
    shown: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Tell whether both read the same."""
        return not self.only_kafscale and not self.only_kafka


def compare(
    spark: SparkSession,
    ends: Mapping[TopicPartition, int],
    logs: Logs,
    options: Mapping[str, str],
    kafka_options: Mapping[str, str],
    *,
    last_count: int | None,
) -> Comparison:
    """Compare all that is before these offsets, or the last so many of each partition.

    Both read what was committed alone. Raises what either source does.
    """
    starts = {
        name: max(log.start_offset, 0 if last_count is None else ends[name] - last_count) for name, log in logs.items()
    }
    common = {**range_options(starts, {name: ends[name] for name in starts}), "includeHeaders": "true"}
    ours = spark.read.format("kafscale").options(**{**options, **common}).load()
    theirs = spark.read.format("kafka").options(**{**READ_COMMITTED, **kafka_options, **common}).load()
    return compared(ours, theirs)


READ_COMMITTED = {"kafka.isolation.level": "read_committed"}


def compared(ours: DataFrame, theirs: DataFrame) -> Comparison:
    """Compare two frames of the same columns."""
    columns = ours.columns
    only_ours, only_theirs = ours.exceptAll(theirs.select(*columns)), theirs.select(*columns).exceptAll(ours)
    shown = [
        f"only {name}: {row.topic} {row.partition} at offset {row.offset}"
        for name, frame in (("kafscale", only_ours), ("kafka", only_theirs))
        for row in frame.orderBy("topic", "partition", "offset").limit(SHOWN_COUNT).collect()
    ]
    return Comparison(
        rows=ours.count(), only_kafscale=only_ours.count(), only_kafka=only_theirs.count(), shown=tuple(shown)
    )
