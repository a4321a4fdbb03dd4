"""Ids and epochs of producers, and transactions: requests of clients, coordinators and administrators.

`kafscale.cluster.transactions` coordinates transactional ids; `kafscale.log.partition.producers` has the producers of a
partition.
"""
