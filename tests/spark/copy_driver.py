"""A driver that streams a topic into another one in transactions until it is killed: JSON of its options.

    store, source, target, bootstrap, checkpoint    what is copied to where
    limit                                           records of a batch
    settings                                        Spark's, beside those of the tests
    ends                                            whether to end when there is nothing more to copy

It prints the number of each batch that it has seen the end of, and `failed` and why if the query has failed.
"""

import json
import sys

from pyspark.errors import StreamingQueryException

from tests.devtools.external.spark import start_spark

given = json.loads(sys.argv[1])
spark = start_spark(**given["settings"])
stream = spark.readStream.format("kafscale").options(
    store=given["store"],
    subscribe=given["source"],
    startingOffsets="earliest",
    maxOffsetsPerTrigger=given["limit"],
    minPartitions="4",
)
sink = stream.load().select("key", "value", "partition").writeStream.format("kafscale").option("transactional", "true")
options = {
    "kafka.bootstrap.servers": given["bootstrap"],
    "kafka.linger.ms": "0",
    "topic": given["target"],
    "checkpointLocation": given["checkpoint"],
}
query = sink.options(**options).start()
print("started", flush=True)
seen = -1
try:
    while not query.awaitTermination(0.05):
        progress = query.lastProgress or {"batchId": -1, "numInputRows": 1}
        if progress["batchId"] > seen and progress["numInputRows"]:
            seen = progress["batchId"]
            print(seen, flush=True)
        if given["ends"] and not query.status["isDataAvailable"] and not query.status["isTriggerActive"]:
            query.processAllAvailable()
            query.stop()
except StreamingQueryException as exc:
    print("failed", str(exc).replace("\n", " "), flush=True)
