"""The log: what makes records durable, keeps them and gives them back. Knows no requests and no connections.

`opening` builds a `log.Log` from the settings; only the broker enters there. Handlers use `log.Log`
and the `Partition` that it gives them. The rooms, from the lowest one up:

    wal        what is acknowledged, on the local disk or in the bucket
    partition  one partition's state
    repair     one segment: verified, rebuilt, set aside
    read       fetches
    bucket     listing, restore, deletion
    flush      from memory to the bucket
    rewrite    merging, compaction, retention
    check      `kafscale verify` and `kafscale storage`

Chunk pool, cleaners and the threads that unpack are shared by all partitions. Bytes are those of `kafscale.formats`.
"""
