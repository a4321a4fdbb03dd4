"""OffsetForLeaderEpoch (key 23, versions 2 to 4): where a leader epoch ends (KIP-320).

A consumer asks after a change of leader, to notice that what it has read was truncated.
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class OffsetForLeaderPartition:
    partition: int = wire("int32")
    current_leader_epoch: int = wire("int32", default=-1)
    leader_epoch: int = wire("int32")


@attrs.define(kw_only=True)
class OffsetForLeaderTopic:
    topic: str = wire("string")
    partitions: list[OffsetForLeaderPartition] = wire(Array(OffsetForLeaderPartition), factory=list)


@attrs.define(kw_only=True)
class OffsetForLeaderEpochRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 23, 2, 4, 4

    replica_id: int = wire("int32", since=3, default=-2)  # -1: a consumer, -2: unknown
    topics: list[OffsetForLeaderTopic] = wire(Array(OffsetForLeaderTopic), factory=list)


@attrs.define(kw_only=True)
class EpochEndOffset:
    error_code: int = wire("int16", default=0)
    partition: int = wire("int32")
    leader_epoch: int = wire("int32", default=-1)
    end_offset: int = wire("int64", default=-1)


@attrs.define(kw_only=True)
class OffsetForLeaderTopicResult:
    topic: str = wire("string")
    partitions: list[EpochEndOffset] = wire(Array(EpochEndOffset), factory=list)


@attrs.define(kw_only=True)
class OffsetForLeaderEpochResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 23, 2, 4, 4

    throttle_time_ms: int = wire("int32", default=0)
    topics: list[OffsetForLeaderTopicResult] = wire(Array(OffsetForLeaderTopicResult), factory=list)
