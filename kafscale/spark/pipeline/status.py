"""How far each mapping is, as its table tells. This module imports pyspark."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import attrs
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from kafscale.spark.bucket.position import Json, Position
from kafscale.spark.pipeline.config import Pipeline, TableMapping
from kafscale.spark.pipeline.formats import format_of
from kafscale.spark.pipeline.runner import Lag, behind_of, planner_of
from kafscale.spark.pipeline.snapshots import newest


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


def status(spark: SparkSession, pipeline: Pipeline) -> Sequence[MappingStatus]:
    """Return the status of all mappings. Raises ConfigError, StoreError."""
    return [_status(spark, pipeline, each) for each in pipeline.mappings]


def _status(spark: SparkSession, pipeline: Pipeline, mapping: TableMapping) -> MappingStatus:
    tables = format_of(spark, pipeline)
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
        dead_letters=_dead_letters(spark, pipeline, mapping),
    )


def _dead_letters(spark: SparkSession, pipeline: Pipeline, mapping: TableMapping) -> int:
    if mapping.dead_letters is None or not format_of(spark, pipeline).exists(mapping.dead_letters):
        return 0
    return int(spark.table(pipeline.full_name(mapping.dead_letters)).where(col("mapping") == mapping.id).count())
