"""Consumer groups: handlers turn requests into events for `kafscale.cluster.groups`, and answers into responses.

    members         JoinGroup, SyncGroup, Heartbeat, LeaveGroup; ConsumerGroupHeartbeat of Kafka 4's protocol
    offsets         OffsetCommit, OffsetFetch, OffsetDelete
    administrators  ListGroups, DescribeGroups, ConsumerGroupDescribe, DeleteGroups

The answers to JoinGroup and SyncGroup may take long.
"""
