"""UnregisterBroker (key 64, version 0): forget a broker that does not come back (KIP-631)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import wire


@attrs.define(kw_only=True)
class UnregisterBrokerRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 64, 0, 0, 0

    broker_id: int = wire("int32")


@attrs.define(kw_only=True)
class UnregisterBrokerResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 64, 0, 0, 0

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
