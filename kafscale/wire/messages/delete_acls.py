"""DeleteAcls (key 31, versions 1 to 3): access control lists to remove, by filters (KIP-140)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class DeleteAclsFilter:
    resource_type_filter: int = wire("int8")
    resource_name_filter: str | None = wire("string", default=None)
    pattern_type_filter: int = wire("int8", default=3)  # literal
    principal_filter: str | None = wire("string", default=None)
    host_filter: str | None = wire("string", default=None)
    operation: int = wire("int8")
    permission_type: int = wire("int8")


@attrs.define(kw_only=True)
class DeleteAclsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 31, 1, 3, 2

    filters: list[DeleteAclsFilter] = wire(Array(DeleteAclsFilter), factory=list)


@attrs.define(kw_only=True)
class DeleteAclsMatchingAcl:
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    pattern_type: int = wire("int8", default=3)
    principal: str = wire("string")
    host: str = wire("string")
    operation: int = wire("int8")
    permission_type: int = wire("int8")


@attrs.define(kw_only=True)
class DeleteAclsFilterResult:
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    matching_acls: list[DeleteAclsMatchingAcl] = wire(Array(DeleteAclsMatchingAcl), factory=list)


@attrs.define(kw_only=True)
class DeleteAclsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 31, 1, 3, 2

    throttle_time_ms: int = wire("int32", default=0)
    filter_results: list[DeleteAclsFilterResult] = wire(Array(DeleteAclsFilterResult), factory=list)
