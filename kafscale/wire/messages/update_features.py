"""UpdateFeatures (key 57, versions 0 to 2): raise or lower the cluster's feature levels (KIP-584).

Version 1 has kinds of downgrades and a dry run (KIP-778). Version 2 answers as a whole, no longer by feature.
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class FeatureUpdateKey:
    feature: str = wire("string")
    max_version_level: int = wire("int16")  # below 1: delete the feature
    allow_downgrade: bool = wire("bool", until=0, default=False)
    upgrade_type: int = wire("int8", since=1, default=1)  # 1 upgrade, 2 safe downgrade, 3 unsafe downgrade


@attrs.define(kw_only=True)
class UpdateFeaturesRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 57, 0, 2, 0

    timeout_ms: int = wire("int32", default=60000)
    feature_updates: list[FeatureUpdateKey] = wire(Array(FeatureUpdateKey), factory=list)
    validate_only: bool = wire("bool", since=1, default=False)


@attrs.define(kw_only=True)
class UpdatableFeatureResult:
    feature: str = wire("string")
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)


@attrs.define(kw_only=True)
class UpdateFeaturesResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 57, 0, 2, 0

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    results: list[UpdatableFeatureResult] = wire(Array(UpdatableFeatureResult), until=1, factory=list)
