"""By this name Spark finds `format("kafscale")` without registration: it imports every module called `pyspark_…`.

It does so in a worker, which nothing else of KafScale is called in.
"""

from kafscale.spark.source.source import KafScaleDataSource as DefaultSource
from kafscale.spark.workers.calls import ease_next_call

__all__ = ["DefaultSource"]

ease_next_call()
