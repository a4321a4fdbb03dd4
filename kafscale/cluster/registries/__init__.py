"""Registries of the cluster: topics, configs, access control lists, users, quotas and producer ids.

Each keeps its entries of the metadata store in memory, where reads are synchronous. A change is durable in the store
before it acts: it comes back as a change of the store, as one of another broker does, and is applied in the same way.
"""
