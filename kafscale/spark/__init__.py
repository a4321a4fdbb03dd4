"""Topics as DataFrames, read by Spark straight from the bucket. Imports neither trio nor the broker.

    import kafscale.spark
    spark.read.format("kafscale").option("store", "s3://bucket/prefix").option("subscribe", "orders").load()

Import it before the session is made: its workers then run the same Python, in which KafScale is installed, unless
PYSPARK_PYTHON says otherwise, and Spark talks to them through Unix domain sockets, unless PYSPARK_UDS_MODE or
`spark.python.unix.domain.socket.enabled` say otherwise. Through TCP, Spark's default, each task begins 40 ms later, by
Nagle's algorithm and delayed acknowledgement. This module does not import pyspark.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _talk_through_unix_sockets() -> None:
    """Tell pyspark and its JVM, which must both know; a JVM that runs already would not learn of it."""
    context = sys.modules.get("pyspark.core.context")
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit, whose JVM starts this process
    if not is_submitted and (context is None or context.SparkContext._gateway is None):
        os.environ.setdefault("PYSPARK_UDS_MODE", "true")


os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
_talk_through_unix_sockets()

LAZY = {  # what is imported with pyspark
    "from_registry": "values.registry_column",
    "split_values": "values.registry_column",
    "count_values": "values.registry_column",
    "LagListener": "source.lag_listener",
}


def __getattr__(name: str) -> Any:
    """Functions for values with a schema registry's prefix and the listener, imported when they are asked for."""
    if name in LAZY:
        return getattr(import_module(f"kafscale.spark.{LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Make `format("kafscale")` known to a session that does not find `pyspark_kafscale` by itself."""
    from kafscale.spark.source.source import KafScaleDataSource

    spark.dataSource.register(KafScaleDataSource)
