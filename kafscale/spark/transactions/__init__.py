"""Writes a batch of a Spark job to topics exactly once: tasks prepare, the driver decides and commits for them.

A task writes its rows in a transaction of its own and leaves it open. When all tasks have, the driver records which
transactions make up the batch: the decision, made once for each batch, in a transaction of the query's own id, which
fences other drivers. Then it commits the tasks' transactions. A later run finds the decision and finishes it: rows of a
transaction that was aborted meanwhile, by its timeout or a new use of its id, are copied from the log
(decision 0030). Nothing here imports pyspark.
"""
