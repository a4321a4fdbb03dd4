"""Progress of each mapping as its table tells it, read with Spark or without. This module imports pyspark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Protocol

import attrs
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from kafscale.spark.bucket.position import Json, Position
from kafscale.spark.pipeline.config import Pipeline, TableMapping
from kafscale.spark.pipeline.runner import Lag, behind_of, planner_of
from kafscale.spark.pipeline.snapshots import Commit, newest
from kafscale.spark.pipeline.tables import format_of


@attrs.frozen(kw_only=True)
class MappingStatus:
    """batch_id, offsets and committed_ms are of the newest batch in the table; None, or empty, if there is none.

    lag: how many offsets of the bucket are behind it, lag_bytes how large they are as they are stored, and lag_seconds
    how long ago the first of them were made, by their own time. dead_letters: records in the dead-letter table.
    """

    mapping: str
    table: str
    batch_id: int | None
    offsets: Json
    lag: int
    lag_bytes: int
    lag_seconds: float
    committed_ms: int | None
    snapshot_id: int | None
    dead_letters: int


class Tables(Protocol):
    """Questions that a status asks of a pipeline's tables."""

    def exists(self, table: str) -> bool:
        """Tell whether there is such a table."""
        ...

    def commits(self, table: str) -> Iterator[Commit]:
        """Iterate over what the table consists of now, newest first."""
        ...

    def count(self, table: str, column: str, value: str) -> int:
        """Count the rows of a table that have a value in a column."""
        ...


@attrs.frozen
class SparkTables:
    """The tables as a session sees them."""

    spark: SparkSession
    pipeline: Pipeline

    def exists(self, table: str) -> bool:
        """See `Tables`."""
        return format_of(self.spark, self.pipeline).exists(table)

    def commits(self, table: str) -> Iterator[Commit]:
        """See `Tables`."""
        return format_of(self.spark, self.pipeline).commits(table)

    def count(self, table: str, column: str, value: str) -> int:
        """See `Tables`."""
        return int(self.spark.table(self.pipeline.full_name(table)).where(col(column) == value).count())


def status(tables: Tables, pipeline: Pipeline) -> Sequence[MappingStatus]:
    """Return the status of all mappings. Raises ConfigError, StoreError, and what the tables raise."""
    return [_status(tables, pipeline, each) for each in pipeline.mappings]


def _status(tables: Tables, pipeline: Pipeline, mapping: TableMapping) -> MappingStatus:
    committed = newest(tables.commits(mapping.table), mapping.id) if tables.exists(mapping.table) else None
    end = Position() if committed is None else committed.end
    with closing(planner_of(pipeline, mapping)) as planner:
        lag = Lag.of(behind_of(planner, committed), committed)
    return MappingStatus(
        mapping=mapping.id,
        table=mapping.table,
        batch_id=None if committed is None else committed.batch_id,
        offsets=Position(offsets=end.offsets).to_json(),
        lag=lag.records,
        lag_bytes=lag.bytes,
        lag_seconds=lag.seconds,
        committed_ms=lag.committed_ms,
        snapshot_id=None if committed is None else committed.snapshot_id,
        dead_letters=_dead_letters(tables, mapping),
    )


def _dead_letters(tables: Tables, mapping: TableMapping) -> int:
    if mapping.dead_letters is None or not tables.exists(mapping.dead_letters):
        return 0
    return tables.count(mapping.dead_letters, "mapping", mapping.id)
