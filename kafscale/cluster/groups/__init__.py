"""Groups and their committed offsets, on the frame of `kafscale.cluster.coordinator`. Entered by `GroupCoordinator`.

coordinator  every group of this broker, of either protocol
classic      one group of the classic rebalance protocol; `events` go in and come out
consumer     one group of Kafka 4 (KIP-848); `hosted` writes and times what it decides, `assignors` share partitions out
common       values of groups of both protocols: events, records, settings, bytes of memory
entry        a group of either protocol with its offsets; `switching` turns one into the other
offsets      committed offsets; `offset_transactions` are those that wait for the end of a transaction
loading      the groups of a partition from its records; `log_records` is what each record says
"""
