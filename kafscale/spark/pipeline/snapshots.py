"""What a table's snapshots tell of the micro-batches that made them.

Each has in its summary the mapping, Spark's id of the query, the number of the batch and the offsets where it ended.
Those that compaction makes have none, so the newest that has them is looked for among the ancestors of the current one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from kafscale.spark.pipeline.checkpoint import Offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAPPING = "kafscale.mapping"
QUERY_ID = "kafscale.query-id"
BATCH_ID = "kafscale.batch-id"
OFFSETS = "kafscale.offsets"
SESSION_PREFIX = "spark.sql.iceberg.snapshot-property."  # every commit of a session takes these, MERGE too


@attrs.frozen(kw_only=True)
class Batch:
    """A micro-batch of a mapping."""

    mapping: str
    query_id: str
    batch_id: int
    offsets: Offsets  # where it ends

    def summary(self) -> dict[str, str]:
        """For the summary of its snapshot."""
        return {
            MAPPING: self.mapping,
            QUERY_ID: self.query_id,
            BATCH_ID: str(self.batch_id),
            OFFSETS: json.dumps(self.offsets, separators=(",", ":")),
        }

    def is_in(self, committed: Committed | None) -> bool:
        """Whether the newest snapshot of its mapping is of this batch, or of a later one of the same query."""
        return committed is not None and committed.query_id == self.query_id and committed.batch_id >= self.batch_id


@attrs.frozen(kw_only=True)
class Committed:
    """A micro-batch that is in the table. depth: how many snapshots are newer."""

    mapping: str
    query_id: str
    batch_id: int
    offsets: Offsets
    snapshot_id: int
    parent_id: int | None
    timestamp_ms: int
    depth: int
    summary: Mapping[str, str]

    def is_ahead_of(self, other: Committed | None) -> bool:
        """Whether it is of a later batch than another of its mapping, or, of another query, ends behind it."""
        if other is None:
            return True
        if self.query_id == other.query_id:
            return self.batch_id > other.batch_id
        return any(
            end > other.offsets.get(topic, {}).get(partition, 0)
            for topic, ends in self.offsets.items()
            for partition, end in ends.items()
        )


def load_table(spark: Any, name: str) -> Any:
    """Iceberg's own object of a table, as it is now. `spark` is a session, whose inner parts have no types."""
    table = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)
    table.refresh()
    return table


def committed_batches(table: Any) -> Iterator[Committed]:
    """Newest first."""
    snapshot, depth = table.currentSnapshot(), 0
    while snapshot is not None:
        summary = dict(snapshot.summary())
        parent_id = snapshot.parentId()
        if OFFSETS in summary:
            yield Committed(
                mapping=summary[MAPPING],
                query_id=summary[QUERY_ID],
                batch_id=int(summary[BATCH_ID]),
                offsets=json.loads(summary[OFFSETS]),
                snapshot_id=snapshot.snapshotId(),
                parent_id=parent_id,
                timestamp_ms=snapshot.timestampMillis(),
                depth=depth,
                summary=summary,
            )
        snapshot = None if parent_id is None else table.snapshot(parent_id)
        depth += 1


def newest(table: Any, mapping: str) -> Committed | None:
    """The newest batch of a mapping that is in the table."""
    return next((each for each in committed_batches(table) if each.mapping == mapping), None)


def mark_commits(spark: SparkSession, batch: Batch) -> None:
    """Give the next commits of a session the batch's summary. A stream's session is its own."""
    for name, value in batch.summary().items():
        spark.conf.set(SESSION_PREFIX + name, value)
