"""Changes that empty a table, as Debezium tells them (`op` t), in order with the others. This module imports pyspark.

What is before one is told as `batch.last_by_key` does: of an earlier batch, of a smaller offset in its partition, or,
in another partition, of an earlier time. They empty what is of their own topic. Of those of a batch in one partition
the last one does what all do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, functions

from kafscale.spark.pipeline.records import RECORD, TRUNCATE, Rows

DEAD = "_kafscale_dead"


def truncates_of(rows: Rows, *, batch: str | None = None) -> Sequence[Any]:
    """Return for each partition that has some the last offset and time of them, as rows of Spark.

    batch: a column with the number of the batch, where the rows are of several.
    """
    if TRUNCATE not in rows.frame.columns:
        return []
    number = functions.lit(0) if batch is None else functions.col(batch)
    place = [functions.col(f"{RECORD}.{name}").alias(f"of_{name}") for name in ("topic", "partition")]
    found = rows.good().where(TRUNCATE).groupBy(number.alias("of_batch"), *place)
    last = [functions.max(f"{RECORD}.{name}").alias(f"of_{name}") for name in ("offset", "timestamp")]
    return list(found.agg(*last).collect())


def with_dead(frame: DataFrame, truncates: Sequence[Any], *, batch: str | None = None) -> DataFrame:
    """Return the rows without truncates, and DEAD, whether one of these is behind a row."""
    frame = frame.where(~functions.col(TRUNCATE)) if TRUNCATE in frame.columns else frame
    if not truncates:
        return frame.withColumn(DEAD, functions.lit(False))
    columns = "of_batch INT, of_topic STRING, of_partition INT, of_offset BIGINT, of_timestamp TIMESTAMP"
    these = functions.broadcast(frame.sparkSession.createDataFrame(list(truncates), columns))
    number = functions.lit(0) if batch is None else functions.col(batch)
    partition, timestamp = functions.col(f"{RECORD}.partition"), functions.col(f"{RECORD}.timestamp")
    is_older = (timestamp < these.of_timestamp) | ((timestamp == these.of_timestamp) & (partition < these.of_partition))
    is_before = functions.when(
        partition == these.of_partition, functions.col(f"{RECORD}.offset") < these.of_offset
    ).otherwise(is_older)
    is_dead = (functions.col(f"{RECORD}.topic") == these.of_topic) & (
        (number < these.of_batch) | ((number == these.of_batch) & is_before)
    )
    dead = frame.join(these, is_dead, "left_semi").withColumn(DEAD, functions.lit(True))
    return dead.unionByName(frame.join(these, is_dead, "left_anti").withColumn(DEAD, functions.lit(False)))
