"""TxnOffsetCommit (key 28, versions 0 to 5): offsets that become a group's when the transaction commits (KIP-98).

Version 3 names the member, so that a consumer that lost its partitions is refused (KIP-447). Version 5 adds the group
to the transaction by itself (KIP-890).
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class TxnOffsetCommitRequestPartition:
    partition_index: int = wire("int32")
    committed_offset: int = wire("int64")
    committed_leader_epoch: int = wire("int32", since=2, default=-1)
    committed_metadata: str | None = wire("string")


@attrs.define(kw_only=True)
class TxnOffsetCommitRequestTopic:
    name: str = wire("string")
    partitions: list[TxnOffsetCommitRequestPartition] = wire(Array(TxnOffsetCommitRequestPartition), factory=list)


@attrs.define(kw_only=True)
class TxnOffsetCommitRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 28, 0, 5, 3

    transactional_id: str = wire("string")
    group_id: str = wire("string")
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    generation_id: int = wire("int32", since=3, default=-1)  # -1: not checked
    member_id: str = wire("string", since=3, default="")
    group_instance_id: str | None = wire("string", since=3, default=None)
    topics: list[TxnOffsetCommitRequestTopic] = wire(Array(TxnOffsetCommitRequestTopic), factory=list)


@attrs.define(kw_only=True)
class TxnOffsetCommitResponsePartition:
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)


@attrs.define(kw_only=True)
class TxnOffsetCommitResponseTopic:
    name: str = wire("string")
    partitions: list[TxnOffsetCommitResponsePartition] = wire(Array(TxnOffsetCommitResponsePartition), factory=list)


@attrs.define(kw_only=True)
class TxnOffsetCommitResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 28, 0, 5, 3

    throttle_time_ms: int = wire("int32", default=0)
    topics: list[TxnOffsetCommitResponseTopic] = wire(Array(TxnOffsetCommitResponseTopic), factory=list)
