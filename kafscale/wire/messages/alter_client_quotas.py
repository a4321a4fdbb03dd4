"""AlterClientQuotas (key 49, versions 0 and 1): set and remove quotas of clients and users (KIP-546)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class AlterClientQuotasEntity:
    entity_type: str = wire("string")
    entity_name: str | None = wire("string", default=None)  # None is the default


@attrs.define(kw_only=True)
class AlterClientQuotasOp:
    key: str = wire("string")
    value: float = wire("float64", default=0.0)
    remove: bool = wire("bool", default=False)


@attrs.define(kw_only=True)
class AlterClientQuotasEntry:
    entity: list[AlterClientQuotasEntity] = wire(Array(AlterClientQuotasEntity), factory=list)
    ops: list[AlterClientQuotasOp] = wire(Array(AlterClientQuotasOp), factory=list)


@attrs.define(kw_only=True)
class AlterClientQuotasRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 49, 0, 1, 1

    entries: list[AlterClientQuotasEntry] = wire(Array(AlterClientQuotasEntry), factory=list)
    validate_only: bool = wire("bool", default=False)


@attrs.define(kw_only=True)
class AlterClientQuotasResult:
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    entity: list[AlterClientQuotasEntity] = wire(Array(AlterClientQuotasEntity), factory=list)


@attrs.define(kw_only=True)
class AlterClientQuotasResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 49, 0, 1, 1

    throttle_time_ms: int = wire("int32", default=0)
    entries: list[AlterClientQuotasResult] = wire(Array(AlterClientQuotasResult), factory=list)
