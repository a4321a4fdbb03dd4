"""Brokers that share the bucket, the partitions that each of them leads, and how that changes.

Every change is a commit of the metadata, and each commit is a conditional write (`kafscale.cluster.metadata.shared`).
Two brokers can't both commit a new leader of a partition: the second finds the change of the first.
"""
