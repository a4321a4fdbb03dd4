"""Writing a batch of a Spark job to topics exactly once: tasks prepare, the driver decides, and commits for the tasks.

logs           batches of a partition as they are stored, and what has become of a transaction by its marker
decisions      the decision of a batch, and the topic that keeps the last one of each query
lead           the producer by which a driver decides: the newest one fences all others
commit         the protocol: prepare, decide, finish

A task writes its rows in a transaction of its own and leaves it open. When all tasks have, the driver writes down
which transactions are the batch: that is the decision, made once for each batch, in a transaction of the query's own
id, which fences whoever else would decide. Then it commits the tasks' transactions. A run that comes after finds the
decision and finishes it: what was aborted meanwhile, since it was open too long or its id was used again, is copied
from the log, where its records still are. What happens at each failure is in
`docs/decisions/0030-spark-transactions.md`. Nothing here imports pyspark.
"""
