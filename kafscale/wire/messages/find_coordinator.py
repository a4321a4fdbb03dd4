"""FindCoordinator (key 10, versions 0 to 6): the broker that coordinates a group or a transactional id.

From version 4 on one request asks for several keys (KIP-699), with fields of its own on both sides. Version 6 knows
share partitions, whose keys are `groupId:topicId:partition` (KIP-932).
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class FindCoordinatorRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 10, 0, 6, 3

    key: str = wire("string", until=3, default="")
    key_type: int = wire("int8", since=1, default=0)  # 0 a group, 1 a transactional id, 2 (from 6) a share partition
    coordinator_keys: list[str] = wire(Array("string"), since=4, factory=list)


@attrs.define(kw_only=True)
class Coordinator:
    key: str = wire("string")
    node_id: int = wire("int32", default=-1)
    host: str = wire("string", default="")
    port: int = wire("int32", default=-1)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)


@attrs.define(kw_only=True)
class FindCoordinatorResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 10, 0, 6, 3

    throttle_time_ms: int = wire("int32", since=1, default=0)
    error_code: int = wire("int16", until=3, default=0)
    error_message: str | None = wire("string", since=1, until=3, default=None)
    node_id: int = wire("int32", until=3, default=-1)
    host: str = wire("string", until=3, default="")
    port: int = wire("int32", until=3, default=-1)
    coordinators: list[Coordinator] = wire(Array(Coordinator), since=4, factory=list)
