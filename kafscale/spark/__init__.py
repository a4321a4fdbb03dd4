"""Topics as DataFrames, read by Spark straight from the bucket. Imports neither trio nor anything of the broker.

    import kafscale.spark
    spark.read.format("kafscale").option("store", "s3://bucket/prefix").option("subscribe", "orders").load()

Import it before the session is made: its workers then run the same Python, in which KafScale is installed, unless
PYSPARK_PYTHON says otherwise. What is imported here does not import pyspark.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


LAZY = {  # what is imported with pyspark
    "from_registry": "registry_column",
    "split_values": "registry_column",
    "count_values": "registry_column",
    "LagListener": "lag_listener",
}


def __getattr__(name: str) -> Any:
    """Functions for values with a schema registry's prefix and the listener, imported when they are asked for."""
    if name in LAZY:
        return getattr(import_module(f"kafscale.spark.{LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Make `format("kafscale")` known to a session that does not find `pyspark_kafscale` by itself."""
    from kafscale.spark.source import KafScaleDataSource

    spark.dataSource.register(KafScaleDataSource)
