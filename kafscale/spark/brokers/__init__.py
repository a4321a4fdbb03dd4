"""Asking brokers, where what is in the bucket is not enough: blocking, without trio, as Spark's tasks are.

connection     one connection to a broker
cluster        where leaders and coordinators are, and asking again while they move or restart
transactional  what a transactional producer asks beside its records
newest         where topics end at brokers, and the batches of their last part

Entered by `cluster.Cluster` for what is written, and by `newest.BrokerOptions` for what is read. Nothing here imports
pyspark.
"""
