"""The log: make records durable, keep them and return them. Knows no requests and no connections.

`opening` builds a `log.Log` from the settings. The rooms, from the lowest one up:

    wal        acknowledged records, on the local disk or in the bucket
    partition  one partition's state
    repair     one segment: verified, rebuilt or quarantined
    read       fetches
    bucket     listing, restore, deletion
    flush      from memory to the bucket
    rewrite    merging, compaction, retention
    check      `kafscale verify` and `kafscale storage`
"""
