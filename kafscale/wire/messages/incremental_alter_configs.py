"""IncrementalAlterConfigs (key 44, versions 0 and 1): change single configs (KIP-339)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class AlterableConfig:
    name: str = wire("string")
    config_operation: int = wire("int8")  # 0 set, 1 delete, 2 append, 3 subtract
    value: str | None = wire("string", default=None)


@attrs.define(kw_only=True)
class AlterConfigsResource:
    resource_type: int = wire("int8")  # 2 topic, 4 broker, 8 broker logger
    resource_name: str = wire("string")
    configs: list[AlterableConfig] = wire(Array(AlterableConfig), factory=list)


@attrs.define(kw_only=True)
class IncrementalAlterConfigsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 44, 0, 1, 1

    resources: list[AlterConfigsResource] = wire(Array(AlterConfigsResource), factory=list)
    validate_only: bool = wire("bool", default=False)


@attrs.define(kw_only=True)
class AlterConfigsResourceResponse:
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    resource_type: int = wire("int8")
    resource_name: str = wire("string")


@attrs.define(kw_only=True)
class IncrementalAlterConfigsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 44, 0, 1, 1

    throttle_time_ms: int = wire("int32", default=0)
    responses: list[AlterConfigsResourceResponse] = wire(Array(AlterConfigsResourceResponse), factory=list)
