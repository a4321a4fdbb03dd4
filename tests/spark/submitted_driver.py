"""A program of a user's own, for spark-submit: JSON of the source's options; prints JSON of what it has counted."""

import json
import sys

from pyspark.sql import SparkSession

import kafscale.spark  # noqa: F401 (workers run this Python then)

spark = SparkSession.builder.appName("submitted").getOrCreate()
records = spark.read.format("kafscale").options(**json.loads(sys.argv[1])).load()
print(json.dumps(records.selectExpr("count(*) AS records", "sum(offset) AS offsets").first().asDict()), flush=True)
spark.stop()
