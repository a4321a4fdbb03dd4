"""AlterReplicaLogDirs (key 34, versions 1 and 2): move replicas between the directories of a broker (KIP-113)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class AlterReplicaLogDirTopic:
    name: str = wire("string")
    partitions: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class AlterReplicaLogDir:
    path: str = wire("string")  # absolute
    topics: list[AlterReplicaLogDirTopic] = wire(Array(AlterReplicaLogDirTopic), factory=list)


@attrs.define(kw_only=True)
class AlterReplicaLogDirsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 34, 1, 2, 2

    dirs: list[AlterReplicaLogDir] = wire(Array(AlterReplicaLogDir), factory=list)


@attrs.define(kw_only=True)
class AlterReplicaLogDirPartitionResult:
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)


@attrs.define(kw_only=True)
class AlterReplicaLogDirTopicResult:
    topic_name: str = wire("string")
    partitions: list[AlterReplicaLogDirPartitionResult] = wire(Array(AlterReplicaLogDirPartitionResult), factory=list)


@attrs.define(kw_only=True)
class AlterReplicaLogDirsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 34, 1, 2, 2

    throttle_time_ms: int = wire("int32", default=0)
    results: list[AlterReplicaLogDirTopicResult] = wire(Array(AlterReplicaLogDirTopicResult), factory=list)
