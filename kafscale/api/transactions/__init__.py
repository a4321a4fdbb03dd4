"""Exactly once, as producers ask for it: the id and the epoch by which their duplicates are known.

Only the table of APIs enters here. Producer ids are given out by `kafscale.cluster.producer_ids`; what a partition
knows of its producers is in `kafscale.log.partition.producers`.
"""
