"""Messages of consumer groups (KIP-848), and those that consumers embed in messages of classic groups."""

from __future__ import annotations

from kafscale.wire.schema import Array, Message, Nullable, Struct, wire


class HeartbeatTopicPartitions(Struct):
    topic_id: bytes = wire("uuid")
    partitions: list[int] = wire(Array("int32"), factory=list)


class ConsumerGroupHeartbeatRequest(Message, key=68, versions=(0, 1), flexible=0):
    """ConsumerGroupHeartbeat (KIP-848). A member sends what has changed since the last one, and null for the rest."""

    group_id: str = wire("string")
    member_id: str = wire("string")
    member_epoch: int = wire("int32")  # 0: join, -1: leave, -2: leave for a while, as a static member
    instance_id: str | None = wire("string", default=None)
    rack_id: str | None = wire("string", default=None)
    rebalance_timeout_ms: int = wire("int32", default=-1)  # -1: as before
    subscribed_topic_names: list[str] | None = wire(Array("string"), default=None)
    subscribed_topic_regex: str | None = wire("string", since=1, default=None)  # RE2
    server_assignor: str | None = wire("string", default=None)
    # what the member has; null: as before
    topic_partitions: list[HeartbeatTopicPartitions] | None = wire(Array(HeartbeatTopicPartitions), default=None)


class HeartbeatAssignment(Struct):
    topic_partitions: list[HeartbeatTopicPartitions] = wire(Array(HeartbeatTopicPartitions), factory=list)


class ConsumerGroupHeartbeatResponse(Message, answers=ConsumerGroupHeartbeatRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    member_id: str | None = wire("string", default=None)
    member_epoch: int = wire("int32", default=0)
    heartbeat_interval_ms: int = wire("int32", default=0)
    assignment: HeartbeatAssignment | None = wire(Nullable(HeartbeatAssignment), default=None)  # null: as before


class ConsumerGroupDescribeRequest(Message, key=69, versions=(0, 1), flexible=0):
    """ConsumerGroupDescribe: groups of KIP-848's protocol. Version 1 tells which members are classic (KIP-1099)."""

    group_ids: list[str] = wire(Array("string"), factory=list)
    include_authorized_operations: bool = wire("bool", default=False)


class DescribedTopicPartitions(Struct):
    topic_id: bytes = wire("uuid")
    topic_name: str = wire("string")
    partitions: list[int] = wire(Array("int32"), factory=list)


class DescribedAssignment(Struct):
    topic_partitions: list[DescribedTopicPartitions] = wire(Array(DescribedTopicPartitions), factory=list)


class DescribedConsumer(Struct):
    member_id: str = wire("string")
    instance_id: str | None = wire("string", default=None)
    rack_id: str | None = wire("string", default=None)
    member_epoch: int = wire("int32")
    client_id: str = wire("string")
    client_host: str = wire("string")
    subscribed_topic_names: list[str] = wire(Array("string"), factory=list)
    subscribed_topic_regex: str | None = wire("string", default=None)
    assignment: DescribedAssignment = wire(DescribedAssignment, factory=DescribedAssignment)
    target_assignment: DescribedAssignment = wire(DescribedAssignment, factory=DescribedAssignment)
    member_type: int = wire("int8", since=1, default=-1)  # -1 unknown, 0 classic, 1 consumer


class DescribedConsumerGroup(Struct):
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    group_id: str = wire("string")
    group_state: str = wire("string", default="")
    group_epoch: int = wire("int32", default=0)
    assignment_epoch: int = wire("int32", default=0)
    assignor_name: str = wire("string", default="")
    members: list[DescribedConsumer] = wire(Array(DescribedConsumer), factory=list)
    authorized_operations: int = wire("int32", default=-2147483648)  # a bit field; this value means "not asked for"


class ConsumerGroupDescribeResponse(Message, answers=ConsumerGroupDescribeRequest):
    throttle_time_ms: int = wire("int32", default=0)
    groups: list[DescribedConsumerGroup] = wire(Array(DescribedConsumerGroup), factory=list)


# Consumers put these into the opaque bytes of JoinGroup and SyncGroup (protocol type "consumer"), each behind its
# version as an int16, which is not part of the class. A member may be newer than this broker: read a version above
# MAX_VERSION as MAX_VERSION and ignore the bytes that follow the message.


class ConsumerTopicPartitions(Struct):
    topic: str = wire("string")
    partitions: list[int] = wire(Array("int32"), factory=list)


class ConsumerProtocolSubscription(Message, versions=(0, 3)):
    topics: list[str] = wire(Array("string"), factory=list)
    user_data: bytes | None = wire("bytes", default=None)
    owned_partitions: list[ConsumerTopicPartitions] = wire(Array(ConsumerTopicPartitions), since=1, factory=list)
    generation_id: int = wire("int32", since=2, default=-1)
    rack_id: str | None = wire("string", since=3, default=None)


class ConsumerProtocolAssignment(Message, versions=(0, 3)):
    assigned_partitions: list[ConsumerTopicPartitions] = wire(Array(ConsumerTopicPartitions), factory=list)
    user_data: bytes | None = wire("bytes", default=None)
