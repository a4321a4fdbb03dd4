"""Topics as DataFrames, read by Spark straight from the bucket. Imports neither trio nor anything of the broker.

    import kafscale.spark
    spark.read.format("kafscale").option("store", "s3://bucket/prefix").option("subscribe", "orders").load()

Import it before the session is made: its workers then run the same Python, in which KafScale is installed, unless
PYSPARK_PYTHON says otherwise. What is imported here does not import pyspark.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def register(spark: SparkSession) -> None:
    """Make `format("kafscale")` known to a session that does not find `pyspark_kafscale` by itself."""
    from kafscale.spark.source import KafScaleDataSource

    spark.dataSource.register(KafScaleDataSource)
