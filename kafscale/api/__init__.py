"""One module per API key, in rooms by what a reader looks for, and the table from which ApiVersions is built.

    table          every API that is served; `reference` has the others, and makes the page of the protocol
    produce        Produce, the one API that is a room of its own
    records        Fetch, ListOffsets and what else the leader of a partition is asked about its records
    groups         consumer groups: members, committed offsets, administration
    transactions   ids and epochs of producers, by which each record is in the log exactly once
    topics         creating, enlarging and deleting topics
    configs        configs of topics and brokers, and the quotas of clients
    cluster        what the broker speaks, which brokers there are, and where everything is
    handling       what every handler is given and asks; the rooms above it do not know each other

Every module that is named after an API opens with the versions of it that are served and what each of them added: Fetch
12 is in `records.fetch`. A handler checks its request, asks `kafscale.log` and `kafscale.cluster`, and makes the
response. The broker enters by `table` and `handling`; the dispatcher by `table`, and by the modules of those few APIs
that it runs in a way of their own.
"""
