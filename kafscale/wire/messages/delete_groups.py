"""DeleteGroups (key 42, versions 0 to 2): groups to delete with their offsets."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class DeleteGroupsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 42, 0, 2, 2

    groups_names: list[str] = wire(Array("string"), factory=list)


@attrs.define(kw_only=True)
class DeletableGroupResult:
    group_id: str = wire("string")
    error_code: int = wire("int16", default=0)


@attrs.define(kw_only=True)
class DeleteGroupsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 42, 0, 2, 2

    throttle_time_ms: int = wire("int32", default=0)
    results: list[DeletableGroupResult] = wire(Array(DeletableGroupResult), factory=list)
