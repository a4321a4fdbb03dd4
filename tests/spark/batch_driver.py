"""A driver that writes each batch of a stream into a directory by foreachBatch: STORE TOPIC CHECKPOINT OUTPUT.

It prints the number of each batch when it begins to write it, and "done" when nothing is left.
"""

import sys

from tests.devtools.external.spark import start_spark

store, topic, checkpoint, output = sys.argv[1:]
spark = start_spark()


def write(frame, batch_id: int) -> None:
    print(batch_id, flush=True)
    frame.select("partition", "offset", "value").write.mode("overwrite").parquet(f"{output}/batch={batch_id}")


stream = spark.readStream.format("kafscale").options(
    store=store, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="40"
)
query = stream.load().writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()
query.processAllAvailable()
query.stop()
print("done", flush=True)
spark.stop()
