"""Heartbeat (key 12, versions 0 to 4): a member is alive; the reply says whether the group rebalances."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import wire


@attrs.define(kw_only=True)
class HeartbeatRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 12, 0, 4, 4

    group_id: str = wire("string")
    generation_id: int = wire("int32")
    member_id: str = wire("string")
    group_instance_id: str | None = wire("string", since=3, default=None)


@attrs.define(kw_only=True)
class HeartbeatResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 12, 0, 4, 4

    throttle_time_ms: int = wire("int32", since=1, default=0)
    error_code: int = wire("int16", default=0)
