"""CreateAcls (key 30, versions 1 to 3): access control lists to add (KIP-140)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class AclCreation:
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    resource_pattern_type: int = wire("int8", default=3)  # literal
    principal: str = wire("string")
    host: str = wire("string")
    operation: int = wire("int8")
    permission_type: int = wire("int8")


@attrs.define(kw_only=True)
class CreateAclsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 30, 1, 3, 2

    creations: list[AclCreation] = wire(Array(AclCreation), factory=list)


@attrs.define(kw_only=True)
class AclCreationResult:
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)


@attrs.define(kw_only=True)
class CreateAclsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 30, 1, 3, 2

    throttle_time_ms: int = wire("int32", default=0)
    results: list[AclCreationResult] = wire(Array(AclCreationResult), factory=list)
