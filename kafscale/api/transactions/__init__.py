"""Exactly once, as producers ask for it: ids and epochs, and transactions.

Only the table of APIs enters here. Producer ids are given out by `kafscale.cluster.producer_ids`; what a partition
knows of its producers is in `kafscale.log.partition.producers`; transactional ids are coordinated by
`kafscale.cluster.coordination`.
"""
