"""Acquires and releases partitions as their placements say, and reads those that other brokers lead.

leading       acquires and releases partitions
epoch_starts  commits at which offset each leader epoch begins, for many brokers together
following     partitions of other leaders, read from the bucket and their leaders' streams
"""
