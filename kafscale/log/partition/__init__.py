"""One partition: offsets, producers, the memory tail and who waits for it. All changes of state are synchronous.

Entered by `partition.Partition`. `chunks` is the memory that all partitions share, `producer_budget` their bound on
producers, `log_config` what a topic's configs mean here.
"""
