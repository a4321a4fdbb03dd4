"""Messages about offsets that groups commit."""

from __future__ import annotations

from kafscale.wire.schema import Array, Message, Struct, wire


class OffsetCommitRequestPartition(Struct):
    partition_index: int = wire("int32")
    committed_offset: int = wire("int64")
    committed_leader_epoch: int = wire("int32", since=6, default=-1)
    committed_metadata: str | None = wire("string", default=None)


class OffsetCommitRequestTopic(Struct):
    name: str = wire("string", until=9, default="")
    topic_id: bytes = wire("uuid", since=10, default=bytes(16))
    partitions: list[OffsetCommitRequestPartition] = wire(Array(OffsetCommitRequestPartition), factory=list)


class OffsetCommitRequest(Message, key=8, versions=(2, 10), flexible=8):
    """OffsetCommit: consumed positions to store for a group."""

    NEWEST_WITH_NAMES = 9

    group_id: str = wire("string")
    generation_id_or_member_epoch: int = wire("int32", default=-1)  # -1: a simple consumer, not a member
    member_id: str = wire("string")  # empty: likewise
    group_instance_id: str | None = wire("string", since=7, default=None)
    retention_time_ms: int = wire("int64", until=4, default=-1)  # -1: the broker's
    topics: list[OffsetCommitRequestTopic] = wire(Array(OffsetCommitRequestTopic), factory=list)


class OffsetCommitResponsePartition(Struct):
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)


class OffsetCommitResponseTopic(Struct):
    name: str = wire("string", until=9, default="")
    topic_id: bytes = wire("uuid", since=10, default=bytes(16))
    partitions: list[OffsetCommitResponsePartition] = wire(Array(OffsetCommitResponsePartition), factory=list)


class OffsetCommitResponse(Message, answers=OffsetCommitRequest):
    throttle_time_ms: int = wire("int32", since=3, default=0)
    topics: list[OffsetCommitResponseTopic] = wire(Array(OffsetCommitResponseTopic), factory=list)


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = wire("int32")
    committed_offset: int = wire("int64")
    committed_leader_epoch: int = wire("int32", since=2, default=-1)
    committed_metadata: str | None = wire("string")


class TxnOffsetCommitRequestTopic(Struct):
    name: str = wire("string")
    partitions: list[TxnOffsetCommitRequestPartition] = wire(Array(TxnOffsetCommitRequestPartition), factory=list)


class TxnOffsetCommitRequest(Message, key=28, versions=(0, 5), flexible=3):
    """TxnOffsetCommit: offsets that become a group's when the transaction commits (KIP-98)."""

    transactional_id: str = wire("string")
    group_id: str = wire("string")
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    generation_id: int = wire("int32", since=3, default=-1)  # -1: not checked
    member_id: str = wire("string", since=3, default="")
    group_instance_id: str | None = wire("string", since=3, default=None)
    topics: list[TxnOffsetCommitRequestTopic] = wire(Array(TxnOffsetCommitRequestTopic), factory=list)


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)


class TxnOffsetCommitResponseTopic(Struct):
    name: str = wire("string")
    partitions: list[TxnOffsetCommitResponsePartition] = wire(Array(TxnOffsetCommitResponsePartition), factory=list)


class TxnOffsetCommitResponse(Message, answers=TxnOffsetCommitRequest):
    throttle_time_ms: int = wire("int32", default=0)
    topics: list[TxnOffsetCommitResponseTopic] = wire(Array(TxnOffsetCommitResponseTopic), factory=list)


class OffsetFetchRequestTopic(Struct):
    name: str = wire("string", until=9, default="")
    topic_id: bytes = wire("uuid", since=10, default=bytes(16))
    partition_indexes: list[int] = wire(Array("int32"), factory=list)


class OffsetFetchRequestGroup(Struct):
    group_id: str = wire("string")
    member_id: str | None = wire("string", since=9, default=None)
    member_epoch: int = wire("int32", since=9, default=-1)  # -1: not a member, or of the classic protocol
    topics: list[OffsetFetchRequestTopic] | None = wire(Array(OffsetFetchRequestTopic))  # null: all of them


class OffsetFetchRequest(Message, key=9, versions=(1, 10), flexible=6):
    """OffsetFetch: the committed positions of groups."""

    NEWEST_WITH_NAMES = 9

    group_id: str = wire("string", until=7, default="")
    # null (from version 2 on): all of them
    topics: list[OffsetFetchRequestTopic] | None = wire(Array(OffsetFetchRequestTopic), until=7, factory=list)
    groups: list[OffsetFetchRequestGroup] = wire(Array(OffsetFetchRequestGroup), since=8, factory=list)
    # fail rather than report an offset of an open transaction
    require_stable: bool = wire("bool", since=7, default=False)


class OffsetFetchResponsePartition(Struct):
    partition_index: int = wire("int32")
    committed_offset: int = wire("int64", default=-1)  # -1: none
    committed_leader_epoch: int = wire("int32", since=5, default=-1)
    metadata: str | None = wire("string", default="")
    error_code: int = wire("int16", default=0)


class OffsetFetchResponseTopic(Struct):
    name: str = wire("string", until=9, default="")
    topic_id: bytes = wire("uuid", since=10, default=bytes(16))
    partitions: list[OffsetFetchResponsePartition] = wire(Array(OffsetFetchResponsePartition), factory=list)


class OffsetFetchResponseGroup(Struct):
    group_id: str = wire("string")
    topics: list[OffsetFetchResponseTopic] = wire(Array(OffsetFetchResponseTopic), factory=list)
    error_code: int = wire("int16", default=0)


class OffsetFetchResponse(Message, answers=OffsetFetchRequest):
    throttle_time_ms: int = wire("int32", since=3, default=0)
    topics: list[OffsetFetchResponseTopic] = wire(Array(OffsetFetchResponseTopic), until=7, factory=list)
    error_code: int = wire("int16", since=2, until=7, default=0)
    groups: list[OffsetFetchResponseGroup] = wire(Array(OffsetFetchResponseGroup), since=8, factory=list)


class OffsetDeleteRequestPartition(Struct):
    partition_index: int = wire("int32")


class OffsetDeleteRequestTopic(Struct):
    name: str = wire("string")
    partitions: list[OffsetDeleteRequestPartition] = wire(Array(OffsetDeleteRequestPartition), factory=list)


class OffsetDeleteRequest(Message, key=47, versions=(0, 0)):
    """OffsetDelete: committed offsets to forget (KIP-496). Never flexible."""

    group_id: str = wire("string")
    topics: list[OffsetDeleteRequestTopic] = wire(Array(OffsetDeleteRequestTopic), factory=list)


class OffsetDeleteResponsePartition(Struct):
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)


class OffsetDeleteResponseTopic(Struct):
    name: str = wire("string")
    partitions: list[OffsetDeleteResponsePartition] = wire(Array(OffsetDeleteResponsePartition), factory=list)


class OffsetDeleteResponse(Message, answers=OffsetDeleteRequest):
    error_code: int = wire("int16", default=0)
    throttle_time_ms: int = wire("int32", default=0)
    topics: list[OffsetDeleteResponseTopic] = wire(Array(OffsetDeleteResponseTopic), factory=list)
