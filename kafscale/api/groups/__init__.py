"""Consumer groups: joining and leaving them, the offsets that they commit, and what administrators ask about them.

    members         JoinGroup, SyncGroup, Heartbeat, LeaveGroup; ConsumerGroupHeartbeat of Kafka 4's protocol
    offsets         OffsetCommit, OffsetFetch, OffsetDelete
    administrators  ListGroups, DescribeGroups, ConsumerGroupDescribe, DeleteGroups

A handler here turns a request into an event or a question for `kafscale.cluster.groups`, which decides, and its answer
into a response. The table of APIs enters for each; the dispatcher knows `join_group` and `sync_group`, whose answers
may be a long time in coming. Which broker coordinates a group is told by `kafscale.api.cluster.find_coordinator`.
"""
