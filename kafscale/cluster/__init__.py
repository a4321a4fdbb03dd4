"""What the cluster knows beside its records: topics, groups, transactions, metadata, and who leads. Touches no sockets.

    start           what a broker's start does: who may lead, and the metadata that it begins with
    brokers         several brokers on one bucket: who leads what, and how that changes
    assignment      what the APIs ask of that, and its answers for a broker alone; `mover` is what moves partitions
    coordination    coordinators at work: what they decide is written to internal partitions, and read back
    topics          names, ids, partition counts
    groups          the group coordinator
    transactions    the transaction coordinator
    internal        partitions that hold what coordinators know
    configs         what topics and this broker can be told, in Kafka's names
    metadata        the store of all that is not in partitions: get, commit, checkpoints

Beside these rooms, registries that follow the metadata: quotas, configs of brokers and groups, users, ACLs,
producer ids.
State machines are synchronous: events go in, replies and timers come out.
"""
