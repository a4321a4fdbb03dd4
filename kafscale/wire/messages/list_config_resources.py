"""ListConfigResources (key 74, versions 0 and 1): the resources that have configs (KIP-1142).

Version 0 was ListClientMetricsResources, and lists those only (KIP-714).
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class ListConfigResourcesRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 74, 0, 1, 0

    resource_types: list[int] = wire(Array("int8"), since=1, factory=list)  # empty: all


@attrs.define(kw_only=True)
class ConfigResource:
    resource_name: str = wire("string")
    resource_type: int = wire("int8", since=1, default=16)  # 16: client metrics


@attrs.define(kw_only=True)
class ListConfigResourcesResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 74, 0, 1, 0

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    config_resources: list[ConfigResource] = wire(Array(ConfigResource), factory=list)
