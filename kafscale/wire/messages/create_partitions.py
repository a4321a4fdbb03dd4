"""CreatePartitions (key 37, versions 0 to 3): more partitions for existing topics.

The versions differ in encoding only.
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class CreatePartitionsAssignment:
    broker_ids: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class CreatePartitionsTopic:
    name: str = wire("string")
    count: int = wire("int32")  # the new total
    # null: the broker decides
    assignments: list[CreatePartitionsAssignment] | None = wire(Array(CreatePartitionsAssignment))


@attrs.define(kw_only=True)
class CreatePartitionsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 37, 0, 3, 2

    topics: list[CreatePartitionsTopic] = wire(Array(CreatePartitionsTopic), factory=list)
    timeout_ms: int = wire("int32")
    validate_only: bool = wire("bool", default=False)


@attrs.define(kw_only=True)
class CreatePartitionsTopicResult:
    name: str = wire("string")
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)


@attrs.define(kw_only=True)
class CreatePartitionsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 37, 0, 3, 2

    throttle_time_ms: int = wire("int32", default=0)
    results: list[CreatePartitionsTopicResult] = wire(Array(CreatePartitionsTopicResult), factory=list)
