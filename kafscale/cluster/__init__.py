"""What the cluster knows beside its records: topics, groups, producer ids, metadata, and who leads. Touches no sockets.

    metadata     the store of all of it: get, commit, checkpoints
    configs      what topics and this broker can be told, in Kafka's names
    topics       names, ids, partition counts
    groups       the group coordinator
    assignment   which broker leads which partition, and who else is there
    controller   the claim to lead, and what a start does with it

State machines are synchronous: events go in, replies and timers come out.
"""
