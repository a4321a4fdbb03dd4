"""Messages about topics: Metadata, DescribeTopicPartitions, CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

from kafscale.wire.schema import Array, Message, Nullable, Struct, wire


class MetadataRequestTopic(Struct):
    topic_id: bytes = wire("uuid", since=10, default=bytes(16))
    name: str | None = wire("string")  # null when asked for by id


class MetadataRequest(Message, key=3, versions=(0, 13), flexible=9):
    """Metadata: brokers, topics, and the leader of each partition."""

    # null (in version 0: empty) asks for all topics
    topics: list[MetadataRequestTopic] | None = wire(Array(MetadataRequestTopic))
    allow_auto_topic_creation: bool = wire("bool", since=4, default=True)
    include_cluster_authorized_operations: bool = wire("bool", since=8, until=10, default=False)
    include_topic_authorized_operations: bool = wire("bool", since=8, default=False)


class MetadataResponseBroker(Struct):
    node_id: int = wire("int32")
    host: str = wire("string")
    port: int = wire("int32")
    rack: str | None = wire("string", since=1, default=None)


class MetadataResponsePartition(Struct):
    error_code: int = wire("int16", default=0)
    partition_index: int = wire("int32")
    leader_id: int = wire("int32", default=-1)
    leader_epoch: int = wire("int32", since=7, default=-1)
    replica_nodes: list[int] = wire(Array("int32"), factory=list)
    isr_nodes: list[int] = wire(Array("int32"), factory=list)
    offline_replicas: list[int] = wire(Array("int32"), since=5, factory=list)


class MetadataResponseTopic(Struct):
    error_code: int = wire("int16", default=0)
    name: str | None = wire("string")  # null for an unknown id
    topic_id: bytes = wire("uuid", since=10, default=bytes(16))
    is_internal: bool = wire("bool", since=1, default=False)
    partitions: list[MetadataResponsePartition] = wire(
        Array(MetadataResponsePartition, may_be_encoded=True), factory=list
    )
    # a bit field; this value means "not asked for"
    topic_authorized_operations: int = wire("int32", since=8, default=-2147483648)


class MetadataResponse(Message, answers=MetadataRequest):
    throttle_time_ms: int = wire("int32", since=3, default=0)
    brokers: list[MetadataResponseBroker] = wire(Array(MetadataResponseBroker), factory=list)
    cluster_id: str | None = wire("string", since=2, default=None)
    controller_id: int = wire("int32", since=1, default=-1)
    topics: list[MetadataResponseTopic] = wire(Array(MetadataResponseTopic), factory=list)
    # as `topic_authorized_operations`
    cluster_authorized_operations: int = wire("int32", since=8, until=10, default=-2147483648)
    error_code: int = wire("int16", since=13, default=0)


class TopicRequest(Struct):
    name: str = wire("string")


class Cursor(Struct):
    topic_name: str = wire("string")
    partition_index: int = wire("int32")


class DescribeTopicPartitionsRequest(Message, key=75, versions=(0, 0), flexible=0):
    """DescribeTopicPartitions: topics and their partitions, in pages (KIP-966)."""

    topics: list[TopicRequest] = wire(Array(TopicRequest), factory=list)
    response_partition_limit: int = wire("int32", default=2000)
    cursor: Cursor | None = wire(Nullable(Cursor), default=None)  # null: from the beginning


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: int = wire("int16", default=0)
    partition_index: int = wire("int32")
    leader_id: int = wire("int32", default=-1)
    leader_epoch: int = wire("int32", default=-1)
    replica_nodes: list[int] = wire(Array("int32"), factory=list)
    isr_nodes: list[int] = wire(Array("int32"), factory=list)
    eligible_leader_replicas: list[int] | None = wire(Array("int32"), default=None)  # null: the broker does not know
    last_known_elr: list[int] | None = wire(Array("int32"), default=None)
    offline_replicas: list[int] = wire(Array("int32"), factory=list)


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: int = wire("int16", default=0)
    name: str | None = wire("string")
    topic_id: bytes = wire("uuid", default=bytes(16))
    is_internal: bool = wire("bool", default=False)
    partitions: list[DescribeTopicPartitionsResponsePartition] = wire(
        Array(DescribeTopicPartitionsResponsePartition), factory=list
    )
    # a bit field; this value means "not asked for"
    topic_authorized_operations: int = wire("int32", default=-2147483648)


class DescribeTopicPartitionsResponse(Message, answers=DescribeTopicPartitionsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    topics: list[DescribeTopicPartitionsResponseTopic] = wire(Array(DescribeTopicPartitionsResponseTopic), factory=list)
    next_cursor: Cursor | None = wire(Nullable(Cursor), default=None)  # null: that was all


class CreatableReplicaAssignment(Struct):
    partition_index: int = wire("int32")
    broker_ids: list[int] = wire(Array("int32"), factory=list)


class CreatableTopicConfig(Struct):
    name: str = wire("string")
    value: str | None = wire("string", default=None)


class CreatableTopic(Struct):
    name: str = wire("string")
    num_partitions: int = wire("int32")  # -1: the broker's default
    replication_factor: int = wire("int16")  # -1: the broker's default
    # empty: the broker decides
    assignments: list[CreatableReplicaAssignment] = wire(Array(CreatableReplicaAssignment), factory=list)
    configs: list[CreatableTopicConfig] = wire(Array(CreatableTopicConfig), factory=list)


class CreateTopicsRequest(Message, key=19, versions=(2, 7), flexible=5):
    """CreateTopics: new topics. Version 5 reports their configs, 7 their ids."""

    topics: list[CreatableTopic] = wire(Array(CreatableTopic), factory=list)
    timeout_ms: int = wire("int32", default=60000)
    validate_only: bool = wire("bool", default=False)


class CreatableTopicConfigs(Struct):
    name: str = wire("string")
    value: str | None = wire("string", default=None)
    read_only: bool = wire("bool", default=False)
    config_source: int = wire("int8", default=-1)  # as in DescribeConfigs; -1: unknown
    is_sensitive: bool = wire("bool", default=False)


class CreatableTopicResult(Struct):
    name: str = wire("string")
    topic_id: bytes = wire("uuid", since=7, default=bytes(16))
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    topic_config_error_code: int = wire("int16", since=5, tag=0, default=0)
    num_partitions: int = wire("int32", since=5, default=-1)
    replication_factor: int = wire("int16", since=5, default=-1)
    # null when the caller may not describe them, see `topic_config_error_code`
    configs: list[CreatableTopicConfigs] | None = wire(Array(CreatableTopicConfigs), since=5, factory=list)


class CreateTopicsResponse(Message, answers=CreateTopicsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    topics: list[CreatableTopicResult] = wire(Array(CreatableTopicResult), factory=list)


class DeleteTopicState(Struct):
    name: str | None = wire("string", default=None)  # null when deleted by id
    topic_id: bytes = wire("uuid", default=bytes(16))


class DeleteTopicsRequest(Message, key=20, versions=(1, 6), flexible=4):
    """DeleteTopics: topics to delete, by name, or from version 6 by name or id."""

    topics: list[DeleteTopicState] = wire(Array(DeleteTopicState), since=6, factory=list)
    topic_names: list[str] = wire(Array("string"), until=5, factory=list)
    timeout_ms: int = wire("int32")


class DeletableTopicResult(Struct):
    name: str | None = wire("string")  # null for an unknown id
    topic_id: bytes = wire("uuid", since=6, default=bytes(16))
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", since=5, default=None)


class DeleteTopicsResponse(Message, answers=DeleteTopicsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    responses: list[DeletableTopicResult] = wire(Array(DeletableTopicResult), factory=list)


class CreatePartitionsAssignment(Struct):
    broker_ids: list[int] = wire(Array("int32"), factory=list)


class CreatePartitionsTopic(Struct):
    name: str = wire("string")
    count: int = wire("int32")  # the new total
    # null: the broker decides
    assignments: list[CreatePartitionsAssignment] | None = wire(Array(CreatePartitionsAssignment))


class CreatePartitionsRequest(Message, key=37, versions=(0, 3), flexible=2):
    """CreatePartitions: more partitions for existing topics."""

    topics: list[CreatePartitionsTopic] = wire(Array(CreatePartitionsTopic), factory=list)
    timeout_ms: int = wire("int32")
    validate_only: bool = wire("bool", default=False)


class CreatePartitionsTopicResult(Struct):
    name: str = wire("string")
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)


class CreatePartitionsResponse(Message, answers=CreatePartitionsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    results: list[CreatePartitionsTopicResult] = wire(Array(CreatePartitionsTopicResult), factory=list)
