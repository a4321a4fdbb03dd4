"""Topics, groups, transactions, metadata, and which broker leads what. Touches no sockets.

    assembly        builds the parts that one broker runs
    membership      which brokers there are, who leads what; how a broker starts, joins, and is replaced
    transactions    the transaction coordinator
    groups          the group coordinator
    coordinator     the frame of both: load a partition of an internal topic, apply a record, write, resign
    registries      topics, configs, access control lists, users, quotas, producer ids: follow the metadata
    patterns        regular expressions of clients, within a budget
    metadata        the store of all that is not in partitions: get, commit, checkpoints

State machines are synchronous: events go in, replies and timers come out.
"""
