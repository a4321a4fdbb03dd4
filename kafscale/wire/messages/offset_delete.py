"""OffsetDelete (key 47, version 0): committed offsets to forget (KIP-496). Never flexible."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import NEVER, Array, wire


@attrs.define(kw_only=True)
class OffsetDeleteRequestPartition:
    partition_index: int = wire("int32")


@attrs.define(kw_only=True)
class OffsetDeleteRequestTopic:
    name: str = wire("string")
    partitions: list[OffsetDeleteRequestPartition] = wire(Array(OffsetDeleteRequestPartition), factory=list)


@attrs.define(kw_only=True)
class OffsetDeleteRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 47, 0, 0, NEVER

    group_id: str = wire("string")
    topics: list[OffsetDeleteRequestTopic] = wire(Array(OffsetDeleteRequestTopic), factory=list)


@attrs.define(kw_only=True)
class OffsetDeleteResponsePartition:
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)


@attrs.define(kw_only=True)
class OffsetDeleteResponseTopic:
    name: str = wire("string")
    partitions: list[OffsetDeleteResponsePartition] = wire(Array(OffsetDeleteResponsePartition), factory=list)


@attrs.define(kw_only=True)
class OffsetDeleteResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 47, 0, 0, NEVER

    error_code: int = wire("int16", default=0)
    throttle_time_ms: int = wire("int32", default=0)
    topics: list[OffsetDeleteResponseTopic] = wire(Array(OffsetDeleteResponseTopic), factory=list)
