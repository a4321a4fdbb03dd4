"""DeleteRecords (key 21, versions 0 to 2): move the log start offset of partitions up."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class DeleteRecordsPartition:
    partition_index: int = wire("int32")
    offset: int = wire("int64")  # -1: the high watermark


@attrs.define(kw_only=True)
class DeleteRecordsTopic:
    name: str = wire("string")
    partitions: list[DeleteRecordsPartition] = wire(Array(DeleteRecordsPartition), factory=list)


@attrs.define(kw_only=True)
class DeleteRecordsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 21, 0, 2, 2

    topics: list[DeleteRecordsTopic] = wire(Array(DeleteRecordsTopic), factory=list)
    timeout_ms: int = wire("int32")


@attrs.define(kw_only=True)
class DeleteRecordsPartitionResult:
    partition_index: int = wire("int32")
    low_watermark: int = wire("int64", default=-1)
    error_code: int = wire("int16", default=0)


@attrs.define(kw_only=True)
class DeleteRecordsTopicResult:
    name: str = wire("string")
    partitions: list[DeleteRecordsPartitionResult] = wire(Array(DeleteRecordsPartitionResult), factory=list)


@attrs.define(kw_only=True)
class DeleteRecordsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 21, 0, 2, 2

    throttle_time_ms: int = wire("int32", default=0)
    topics: list[DeleteRecordsTopicResult] = wire(Array(DeleteRecordsTopicResult), factory=list)
