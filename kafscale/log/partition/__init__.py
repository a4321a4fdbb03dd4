"""One partition: offsets, producers, memory tail and waiting fetches. All changes of state are synchronous.

Entered by `partition.Partition`. `chunks` is the memory that all partitions share, `log_config` a topic's configs.
"""
