"""Topics, groups, transactions, metadata, and which broker leads what. Touches no sockets.

    membership      which brokers there are, who leads what; how a broker starts, joins, and is replaced
    coordination    coordinators at work: what they decide is written to internal partitions, and read back
    topics          names, ids, partition counts
    groups          the group coordinator
    transactions    the transaction coordinator
    internal        partitions that hold the state of coordinators
    configs         configs of topics and brokers, in Kafka's names
    metadata        the store of all that is not in partitions: get, commit, checkpoints

Registries that follow the metadata: quotas, configs of brokers and groups, users, ACLs, producer ids.
State machines are synchronous: events go in, replies and timers come out.
"""
