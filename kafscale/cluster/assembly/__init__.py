"""Builds the parts of the cluster that one broker runs, from its membership.

coordinators  registries, and the coordinators of groups and transactions
cleanup       retention, merging, compaction, and deletion of objects that are not needed
"""
