"""Topics and columns that a DataFrame reads, by Spark's plan: before a byte is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafscale.spark.bucket.splits import Split
from kafscale.spark.sql.answers import reads_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def splits_of(frame: DataFrame) -> Sequence[Split]:
    """All that its scans of topics read, in no order. Has the query optimized, and the source plan, if they did not."""
    return [split for splits in reads_of(frame._jdf.queryExecution().optimizedPlan()) for split in splits]
