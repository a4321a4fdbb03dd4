"""Writes a batch of a Spark job to topics exactly once: tasks prepare, the driver decides and commits for them.

logs           stored batches of a partition, and the outcome of a transaction by its marker
decisions      the decision of a batch, and the topic that keeps the last one of each query
lead           the producer by which a driver decides: the newest one fences all others
commit         the protocol: prepare, decide, finish

A task writes its rows in a transaction of its own and leaves it open. When all tasks have, the driver records which
transactions make up the batch: the decision, made once for each batch, in a transaction of the query's own id, which
fences other drivers. Then it commits the tasks' transactions. A later run finds the decision and finishes it: rows of a
transaction that was aborted meanwhile, by its timeout or a new use of its id, are copied from the log.
`docs/decisions/0030-spark-transactions.md` tells what happens at each failure. Nothing here imports pyspark.
"""
