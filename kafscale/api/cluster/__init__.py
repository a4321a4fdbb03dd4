"""Discovery: the served APIs, brokers, topics with the leaders of their partitions, coordinators, the controller.

`kafscale.cluster.membership.assignment` knows who leads and coordinates.
"""
