"""ApiVersions (key 18, versions 0 to 4): which APIs and versions the broker offers, and the client's name.

The reply's header is always version 0, so that a client can read it before it knows what the broker speaks; a version
that the broker doesn't know gets a version-0 body with UNSUPPORTED_VERSION and the list (KIP-511).
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class ApiVersionsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 18, 0, 4, 3

    client_software_name: str = wire("string", since=3, default="")
    client_software_version: str = wire("string", since=3, default="")


@attrs.define(kw_only=True)
class ApiVersion:
    api_key: int = wire("int16")
    min_version: int = wire("int16")
    max_version: int = wire("int16")


@attrs.define(kw_only=True)
class SupportedFeatureKey:
    name: str = wire("string")
    min_version: int = wire("int16")
    max_version: int = wire("int16")


@attrs.define(kw_only=True)
class FinalizedFeatureKey:
    name: str = wire("string")
    max_version_level: int = wire("int16")
    min_version_level: int = wire("int16")


@attrs.define(kw_only=True)
class ApiVersionsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 18, 0, 4, 3

    error_code: int = wire("int16", default=0)
    api_keys: list[ApiVersion] = wire(Array(ApiVersion), factory=list)
    throttle_time_ms: int = wire("int32", since=1, default=0)
    supported_features: list[SupportedFeatureKey] = wire(Array(SupportedFeatureKey), since=3, tag=0, factory=list)
    finalized_features_epoch: int = wire("int64", since=3, tag=1, default=-1)  # -1: unknown
    finalized_features: list[FinalizedFeatureKey] = wire(Array(FinalizedFeatureKey), since=3, tag=2, factory=list)
    zk_migration_ready: bool = wire("bool", since=3, tag=3, default=False)
