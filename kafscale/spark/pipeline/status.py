"""How far each mapping is, as its table tells. This module imports pyspark."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from kafscale.spark.bucket.position import Json, Position
from kafscale.spark.pipeline.config import Pipeline, TableMapping
from kafscale.spark.pipeline.runner import bucket_ends, lag_of
from kafscale.spark.pipeline.snapshots import load_table, newest


@attrs.frozen(kw_only=True)
class MappingStatus:
    """batch_id, offsets and committed_ms are of the newest batch in the table; None, or empty, if there is none.

    lag: how many offsets of the bucket are behind it. dead_letters: records in the dead-letter table.
    """

    mapping: str
    table: str
    batch_id: int | None
    offsets: Json
    lag: int
    committed_ms: int | None
    snapshot_id: int | None
    dead_letters: int


def status(spark: SparkSession, pipeline: Pipeline) -> Sequence[MappingStatus]:
    """Return the status of all mappings. Raises ConfigError, StoreError."""
    return [_status(spark, pipeline, each) for each in pipeline.mappings]


def _status(spark: SparkSession, pipeline: Pipeline, mapping: TableMapping) -> MappingStatus:
    name = pipeline.full_name(mapping.table)
    committed = newest(load_table(spark, name), mapping.id) if spark.catalog.tableExists(name) else None
    end = Position() if committed is None else committed.end
    return MappingStatus(
        mapping=mapping.id,
        table=mapping.table,
        batch_id=None if committed is None else committed.batch_id,
        offsets=Position(offsets=end.offsets).to_json(),
        lag=lag_of(end, bucket_ends(pipeline, mapping)),
        committed_ms=None if committed is None else committed.timestamp_ms,
        snapshot_id=None if committed is None else committed.snapshot_id,
        dead_letters=_dead_letters(spark, pipeline, mapping),
    )


def _dead_letters(spark: SparkSession, pipeline: Pipeline, mapping: TableMapping) -> int:
    if mapping.dead_letters is None:
        return 0
    name = pipeline.full_name(mapping.dead_letters)
    if not spark.catalog.tableExists(name):
        return 0
    return int(spark.table(name).where(col("mapping") == mapping.id).count())
