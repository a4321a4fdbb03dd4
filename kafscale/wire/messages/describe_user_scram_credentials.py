"""DescribeUserScramCredentials (key 50, version 0): which users have passwords for SCRAM (KIP-554)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class UserName:
    name: str = wire("string")


@attrs.define(kw_only=True)
class DescribeUserScramCredentialsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 50, 0, 0, 0

    users: list[UserName] | None = wire(Array(UserName), default=None)  # None or empty: all


@attrs.define(kw_only=True)
class CredentialInfo:
    mechanism: int = wire("int8")  # 1 SCRAM-SHA-256, 2 SCRAM-SHA-512
    iterations: int = wire("int32")


@attrs.define(kw_only=True)
class DescribeUserScramCredentialsResult:
    user: str = wire("string")
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    credential_infos: list[CredentialInfo] = wire(Array(CredentialInfo), factory=list)


@attrs.define(kw_only=True)
class DescribeUserScramCredentialsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 50, 0, 0, 0

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    results: list[DescribeUserScramCredentialsResult] = wire(Array(DescribeUserScramCredentialsResult), factory=list)
