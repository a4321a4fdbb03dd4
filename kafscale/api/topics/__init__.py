"""Create, enlarge and delete topics, and change the leaders of their partitions.

A partition has one replica, the broker that leads it; copies of its records are the object store's.
"""
