"""ListGroups (key 16, versions 0 to 5): the groups of this broker.

Version 4 added states (KIP-518), 5 types (KIP-848).
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class ListGroupsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 16, 0, 5, 3

    states_filter: list[str] = wire(Array("string"), since=4, factory=list)  # empty: all
    types_filter: list[str] = wire(Array("string"), since=5, factory=list)  # empty: all


@attrs.define(kw_only=True)
class ListedGroup:
    group_id: str = wire("string")
    protocol_type: str = wire("string", default="")
    group_state: str = wire("string", since=4, default="")
    group_type: str = wire("string", since=5, default="")


@attrs.define(kw_only=True)
class ListGroupsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 16, 0, 5, 3

    throttle_time_ms: int = wire("int32", since=1, default=0)
    error_code: int = wire("int16", default=0)
    groups: list[ListedGroup] = wire(Array(ListedGroup), factory=list)
