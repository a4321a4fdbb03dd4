"""Groups and their committed offsets, on the frame of `kafscale.cluster.coordinator`. Entered by `GroupCoordinator`.

coordinator  every group of this broker, of either protocol
classic      one group of the classic rebalance protocol
consumer     one group of Kafka 4's protocol (KIP-848)
common       for groups of both protocols: requests and answers, records, settings, topics, assignors
offsets      committed offsets of one group, also those that wait for the end of a transaction
loading      the groups of a partition from its records
"""
