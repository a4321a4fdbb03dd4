"""A driver that streams a topic into Parquet, a few records a batch, until it is killed: STORE TOPIC CHECKPOINT OUTPUT.

It prints the number of each batch that it has seen the end of.
"""

import sys

from tests.devtools.external.spark import start_spark

store, topic, checkpoint, output = sys.argv[1:]
spark = start_spark()
stream = spark.readStream.format("kafscale").options(
    store=store, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="30"
)
sink = stream.load().select("partition", "offset", "value").writeStream.format("parquet")
query = sink.options(path=output, checkpointLocation=checkpoint).start()
seen = -1
while not query.awaitTermination(0.1):
    batch = (query.lastProgress or {"batchId": -1})["batchId"]
    if batch > seen:
        seen = batch
        print(batch, flush=True)
