"""OffsetCommit (key 8, versions 2 to 10): consumed positions to store for a group.

Version 9 may be used by members of either protocol (KIP-848), 10 has topic ids in place of names.
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class OffsetCommitRequestPartition:
    partition_index: int = wire("int32")
    committed_offset: int = wire("int64")
    committed_leader_epoch: int = wire("int32", since=6, default=-1)
    committed_metadata: str | None = wire("string", default=None)


@attrs.define(kw_only=True)
class OffsetCommitRequestTopic:
    name: str = wire("string", until=9, default="")
    topic_id: bytes = wire("uuid", since=10, default=bytes(16))
    partitions: list[OffsetCommitRequestPartition] = wire(Array(OffsetCommitRequestPartition), factory=list)


@attrs.define(kw_only=True)
class OffsetCommitRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 8, 2, 10, 8
    NEWEST_WITH_NAMES = 9

    group_id: str = wire("string")
    generation_id_or_member_epoch: int = wire("int32", default=-1)  # -1: a simple consumer, not a member
    member_id: str = wire("string")  # empty: likewise
    group_instance_id: str | None = wire("string", since=7, default=None)
    retention_time_ms: int = wire("int64", until=4, default=-1)  # -1: the broker's
    topics: list[OffsetCommitRequestTopic] = wire(Array(OffsetCommitRequestTopic), factory=list)


@attrs.define(kw_only=True)
class OffsetCommitResponsePartition:
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)


@attrs.define(kw_only=True)
class OffsetCommitResponseTopic:
    name: str = wire("string", until=9, default="")
    topic_id: bytes = wire("uuid", since=10, default=bytes(16))
    partitions: list[OffsetCommitResponsePartition] = wire(Array(OffsetCommitResponsePartition), factory=list)


@attrs.define(kw_only=True)
class OffsetCommitResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 8, 2, 10, 8

    throttle_time_ms: int = wire("int32", since=3, default=0)
    topics: list[OffsetCommitResponseTopic] = wire(Array(OffsetCommitResponseTopic), factory=list)
