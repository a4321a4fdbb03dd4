"""BrokerHeartbeat (key 63, version 0): a broker says that it runs (KIP-631). Only brokers send it."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import wire


@attrs.define(kw_only=True)
class BrokerHeartbeatRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 63, 0, 0, 0

    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64", default=-1)
    current_metadata_offset: int = wire("int64")
    want_fence: bool = wire("bool")
    want_shut_down: bool = wire("bool")


@attrs.define(kw_only=True)
class BrokerHeartbeatResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 63, 0, 0, 0

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    is_caught_up: bool = wire("bool", default=False)
    is_fenced: bool = wire("bool", default=True)
    should_shut_down: bool = wire("bool", default=False)
