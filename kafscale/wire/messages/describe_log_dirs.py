"""DescribeLogDirs (key 35, versions 1 to 4): the log directories and the size of each partition in them."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class DescribableLogDirTopic:
    topic: str = wire("string")
    partitions: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class DescribeLogDirsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 35, 1, 4, 2

    topics: list[DescribableLogDirTopic] | None = wire(Array(DescribableLogDirTopic))  # null: all of them


@attrs.define(kw_only=True)
class DescribeLogDirsPartition:
    partition_index: int = wire("int32")
    partition_size: int = wire("int64")
    offset_lag: int = wire("int64", default=0)  # how far a future replica is behind
    is_future_key: bool = wire("bool", default=False)


@attrs.define(kw_only=True)
class DescribeLogDirsTopic:
    name: str = wire("string")
    partitions: list[DescribeLogDirsPartition] = wire(Array(DescribeLogDirsPartition), factory=list)


@attrs.define(kw_only=True)
class DescribeLogDirsResult:
    error_code: int = wire("int16", default=0)
    log_dir: str = wire("string")
    topics: list[DescribeLogDirsTopic] = wire(Array(DescribeLogDirsTopic), factory=list)
    total_bytes: int = wire("int64", since=4, default=-1)
    usable_bytes: int = wire("int64", since=4, default=-1)


@attrs.define(kw_only=True)
class DescribeLogDirsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 35, 1, 4, 2

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", since=3, default=0)
    results: list[DescribeLogDirsResult] = wire(Array(DescribeLogDirsResult), factory=list)
