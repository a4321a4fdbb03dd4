"""By this name Spark finds `format("kafscale")` without registration: it imports every module called `pyspark_…`."""

from kafscale.spark.source import KafScaleDataSource as DefaultSource

__all__ = ["DefaultSource"]
