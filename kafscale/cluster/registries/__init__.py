"""Registries of the cluster: topics, configs, access control lists, users, quotas and producer ids.

Each keeps its entries of the metadata store in memory and reads them synchronously. A change is committed to the store
first. It comes back as a change of the store, as one of another broker does, and is applied in the same way.
"""
