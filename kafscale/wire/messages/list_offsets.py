"""ListOffsets (key 2, versions 1 to 10): offsets by timestamp, or one end of the log.

Special timestamps: -1 latest, -2 earliest, -3 (from version 7) the record with the greatest timestamp (KIP-734), and
where a part of a log is stored remotely -4 (from 8) the earliest here (KIP-405) and -5 (from 9) the latest there
(KIP-1005).
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class ListOffsetsPartition:
    partition_index: int = wire("int32")
    current_leader_epoch: int = wire("int32", since=4, default=-1)
    timestamp: int = wire("int64")


@attrs.define(kw_only=True)
class ListOffsetsTopic:
    name: str = wire("string")
    partitions: list[ListOffsetsPartition] = wire(Array(ListOffsetsPartition), factory=list)


@attrs.define(kw_only=True)
class ListOffsetsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 2, 1, 10, 6

    replica_id: int = wire("int32", default=-1)  # -1: a consumer
    isolation_level: int = wire("int8", since=2, default=0)  # 0 read_uncommitted, 1 read_committed
    topics: list[ListOffsetsTopic] = wire(Array(ListOffsetsTopic), factory=list)
    timeout_ms: int = wire("int32", since=10, default=0)  # of reads from remote storage (KIP-1075)


@attrs.define(kw_only=True)
class ListOffsetsPartitionResponse:
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)
    timestamp: int = wire("int64", default=-1)
    offset: int = wire("int64", default=-1)
    leader_epoch: int = wire("int32", since=4, default=-1)


@attrs.define(kw_only=True)
class ListOffsetsTopicResponse:
    name: str = wire("string")
    partitions: list[ListOffsetsPartitionResponse] = wire(Array(ListOffsetsPartitionResponse), factory=list)


@attrs.define(kw_only=True)
class ListOffsetsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 2, 1, 10, 6

    throttle_time_ms: int = wire("int32", since=2, default=0)
    topics: list[ListOffsetsTopicResponse] = wire(Array(ListOffsetsTopicResponse), factory=list)
