"""A driver on a cluster: MASTER, JSON of the source's options, CHECKPOINT, OUTPUT.

It counts the records, streams them into Parquet by Trigger.AvailableNow, and prints JSON of what it has found, and of
the directories that its executors run in.
"""

import json
import os
import sys

from pyspark.sql.functions import udf

from tests.devtools.external.spark import REPOSITORY, start_spark

SUMS = ("count(*)", "sum(crc32(value))", "sum(offset)")

master, options, checkpoint, output = sys.argv[1:]
spark = start_spark(
    **{
        "spark.master": master,
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": str(REPOSITORY),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
)
source = {**json.loads(options), "startingOffsets": "earliest"}
batch = spark.read.format("kafscale").options(**source, minPartitions="8").load()
where = udf(lambda offset: os.getcwd())
stream = spark.readStream.format("kafscale").options(**source).load().select("partition", "offset", "value")
query = stream.writeStream.format("parquet").trigger(availableNow=True)
query.options(path=output, checkpointLocation=checkpoint).start().awaitTermination()
streamed = spark.read.parquet(output)
found = {
    "batch": list(batch.selectExpr(*SUMS).first()),
    "streamed": list(streamed.selectExpr(*SUMS).first()),
    "distinct": streamed.select("partition", "offset").distinct().count(),
    "directories": [row[0] for row in batch.select(where("offset")).distinct().collect()],
}
print(json.dumps(found), flush=True)
spark.stop()
