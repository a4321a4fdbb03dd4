"""DescribeAcls (key 29, versions 1 to 3): the access control lists that a filter asks for (KIP-140)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class DescribeAclsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 29, 1, 3, 2

    resource_type_filter: int = wire("int8")
    resource_name_filter: str | None = wire("string", default=None)
    pattern_type_filter: int = wire("int8", default=3)  # literal
    principal_filter: str | None = wire("string", default=None)
    host_filter: str | None = wire("string", default=None)
    operation: int = wire("int8")
    permission_type: int = wire("int8")


@attrs.define(kw_only=True)
class AclDescription:
    principal: str = wire("string")
    host: str = wire("string")
    operation: int = wire("int8")
    permission_type: int = wire("int8")


@attrs.define(kw_only=True)
class DescribeAclsResource:
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    pattern_type: int = wire("int8", default=3)
    acls: list[AclDescription] = wire(Array(AclDescription), factory=list)


@attrs.define(kw_only=True)
class DescribeAclsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 29, 1, 3, 2

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    resources: list[DescribeAclsResource] = wire(Array(DescribeAclsResource), factory=list)
