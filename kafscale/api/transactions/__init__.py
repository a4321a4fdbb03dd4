"""Exactly once, as producers ask for it: ids and epochs, and transactions.

    InitProducerId                           an id, or a new epoch of one
    AddPartitionsToTxn, AddOffsetsToTxn      enrol what is written in a transaction
    EndTxn, WriteTxnMarkers                  commit or abort it: at the coordinator, and in the partitions
    DescribeTransactions, ListTransactions   what the coordinators know of transactional ids
    DescribeProducers                        what a partition knows of those who write to it

Only the table of APIs enters here. Producer ids are given out by `kafscale.cluster.registries.producer_ids`; what a
partition knows of its producers is in `kafscale.log.partition.producers`; transactional ids are coordinated by
`kafscale.cluster.transactions`.
"""
