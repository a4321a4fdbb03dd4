"""Registries of the cluster: topics, configs, access control lists, users, quotas and producer ids.

Each keeps its entries of the metadata in memory. A change is committed to the store first, and is applied when it comes
back, as one of another broker is.
"""
