"""Asks brokers, for writing and for the newest records: blocking, without trio, as Spark's tasks are.

connection     one connection to a broker cluster        leaders and coordinators, and retries while they move or
restart transactional  requests of a transactional producer besides Produce newest         ends of topics at brokers,
and the batches of their last part

Writers enter by `cluster.Cluster`, readers by `newest.BrokerOptions`. Nothing here imports pyspark.
"""
