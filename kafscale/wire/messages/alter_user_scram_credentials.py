"""AlterUserScramCredentials (key 51, version 0): add and remove users' passwords for SCRAM (KIP-554)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class ScramCredentialDeletion:
    name: str = wire("string")
    mechanism: int = wire("int8")  # 1 SCRAM-SHA-256, 2 SCRAM-SHA-512


@attrs.define(kw_only=True)
class ScramCredentialUpsertion:
    name: str = wire("string")
    mechanism: int = wire("int8")
    iterations: int = wire("int32")
    salt: bytes = wire("bytes")
    salted_password: bytes = wire("bytes")


@attrs.define(kw_only=True)
class AlterUserScramCredentialsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 51, 0, 0, 0

    deletions: list[ScramCredentialDeletion] = wire(Array(ScramCredentialDeletion), factory=list)
    upsertions: list[ScramCredentialUpsertion] = wire(Array(ScramCredentialUpsertion), factory=list)


@attrs.define(kw_only=True)
class AlterUserScramCredentialsResult:
    user: str = wire("string")
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)


@attrs.define(kw_only=True)
class AlterUserScramCredentialsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 51, 0, 0, 0

    throttle_time_ms: int = wire("int32", default=0)
    results: list[AlterUserScramCredentialsResult] = wire(Array(AlterUserScramCredentialsResult), factory=list)
