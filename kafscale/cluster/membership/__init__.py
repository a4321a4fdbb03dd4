"""Brokers that share the bucket, the partitions that each of them leads, and how that changes.

    node        this broker's id, cluster id, epoch and advertised addresses
    records     brokers and placements as entries of the metadata
    state       the same in memory, following the metadata
    assignment  answers the APIs: brokers, controller, leaders, coordinators
    peers       liveness, heartbeats and requests between brokers; the lease
    placement   chooses leaders: new topics, moves, balance, fail-over, the controller
    leading     acquires and releases partitions; reads partitions that other brokers lead
    start       claims or joins, and recovers the metadata

Every change is a commit of the metadata, and each commit is a conditional write (`kafscale.cluster.metadata.shared`).
Two brokers can't both commit a new leader of a partition: the second finds the change of the first.
"""
