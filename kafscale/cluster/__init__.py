"""Topics, groups, transactions, metadata, and which broker leads what. Touches no sockets.

    membership      which brokers there are, who leads what; how a broker starts, joins, and is replaced
    transactions    the transaction coordinator
    groups          the group coordinator
    coordinator     the frame of both: load a partition of an internal topic, apply a record, write, resign
    topics          names, ids, partition counts
    configs         configs of topics and brokers, in Kafka's names
    metadata        the store of all that is not in partitions: get, commit, checkpoints

Registries that follow the metadata: quotas, configs of brokers and groups, users, ACLs, producer ids.
State machines are synchronous: events go in, replies and timers come out.
"""
