"""DescribeClientQuotas (key 48, versions 0 and 1): the quotas of clients and users (KIP-546)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class DescribeClientQuotasComponent:
    entity_type: str = wire("string")
    match_type: int = wire("int8")  # 0 this name, 1 the default, 2 any that has a name or is the default
    match: str | None = wire("string", default=None)


@attrs.define(kw_only=True)
class DescribeClientQuotasRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 48, 0, 1, 1

    components: list[DescribeClientQuotasComponent] = wire(Array(DescribeClientQuotasComponent), factory=list)
    strict: bool = wire("bool", default=False)


@attrs.define(kw_only=True)
class DescribeClientQuotasEntity:
    entity_type: str = wire("string")
    entity_name: str | None = wire("string", default=None)  # None is the default


@attrs.define(kw_only=True)
class DescribeClientQuotasValue:
    key: str = wire("string")
    value: float = wire("float64")


@attrs.define(kw_only=True)
class DescribeClientQuotasEntry:
    entity: list[DescribeClientQuotasEntity] = wire(Array(DescribeClientQuotasEntity), factory=list)
    values: list[DescribeClientQuotasValue] = wire(Array(DescribeClientQuotasValue), factory=list)


@attrs.define(kw_only=True)
class DescribeClientQuotasResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 48, 0, 1, 1

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    entries: list[DescribeClientQuotasEntry] | None = wire(Array(DescribeClientQuotasEntry), default=None)
