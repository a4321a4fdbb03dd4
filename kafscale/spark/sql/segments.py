"""KAFSQL's `_segment`: which object of the bucket a record is in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kafscale.spark.bucket.catalog import PartitionLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SEGMENT = "segment"


def with_segments(frame: DataFrame, logs: Mapping[int, PartitionLog]) -> DataFrame:
    """Adds the column, by the segments that the topic has now: NULL for records that are in none yet."""
    from pyspark.sql.pandas import functions

    names = {index: [segment.key.key for segment in log.segments] for index, log in logs.items()}
    starts = {index: [segment.base_offset for segment in log.segments] for index, log in logs.items()}
    ends = {index: min(log.end_offset, log.flushed_end_offset) for index, log in logs.items()}

    def found(partitions: pa.Array, offsets: pa.Array) -> pa.Array:
        result: Any = np.full(len(offsets), None, dtype=object)
        partition_of, offset_of = partitions.to_numpy(), offsets.to_numpy()
        for index in names:
            rows = (partition_of == index) & (offset_of < ends[index])
            places = np.searchsorted(starts[index], offset_of[rows], side="right") - 1
            result[rows] = np.array([*names[index], None], dtype=object)[places]
        return pa.array(result, pa.string())

    arrow_udf: Any = functions.arrow_udf  # whose stub in pyspark lacks plain functions
    return frame.withColumn(SEGMENT, arrow_udf(found, "string")("partition", "offset"))
