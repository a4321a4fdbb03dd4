"""DescribeConfigs (key 32, versions 1 to 4): the configs of topics and brokers, with their sources."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class DescribeConfigsResource:
    resource_type: int = wire("int8")  # 2 topic, 4 broker, 8 broker logger
    resource_name: str = wire("string")
    configuration_keys: list[str] | None = wire(Array("string"))  # null: all of them


@attrs.define(kw_only=True)
class DescribeConfigsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 32, 1, 4, 4

    resources: list[DescribeConfigsResource] = wire(Array(DescribeConfigsResource), factory=list)
    include_synonyms: bool = wire("bool", default=False)
    include_documentation: bool = wire("bool", since=3, default=False)


@attrs.define(kw_only=True)
class DescribeConfigsSynonym:
    name: str = wire("string")
    value: str | None = wire("string", default=None)
    source: int = wire("int8")


@attrs.define(kw_only=True)
class DescribeConfigsResourceResult:
    name: str = wire("string")
    value: str | None = wire("string", default=None)
    read_only: bool = wire("bool", default=False)
    # 1 topic, 2 dynamic broker, 3 dynamic default, 4 static broker, 5 default
    config_source: int = wire("int8", default=-1)
    is_sensitive: bool = wire("bool", default=False)
    synonyms: list[DescribeConfigsSynonym] = wire(Array(DescribeConfigsSynonym), factory=list)
    # 1 boolean, 2 string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password
    config_type: int = wire("int8", since=3, default=0)
    documentation: str | None = wire("string", since=3, default=None)


@attrs.define(kw_only=True)
class DescribeConfigsResult:
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    configs: list[DescribeConfigsResourceResult] = wire(Array(DescribeConfigsResourceResult), factory=list)


@attrs.define(kw_only=True)
class DescribeConfigsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 32, 1, 4, 4

    throttle_time_ms: int = wire("int32", default=0)
    results: list[DescribeConfigsResult] = wire(Array(DescribeConfigsResult), factory=list)
