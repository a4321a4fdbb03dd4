"""SaslAuthenticate (key 36, versions 0 to 2): the messages of a SASL mechanism (KIP-152, KIP-368)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import wire


@attrs.define(kw_only=True)
class SaslAuthenticateRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 36, 0, 2, 2

    auth_bytes: bytes = wire("bytes")


@attrs.define(kw_only=True)
class SaslAuthenticateResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 36, 0, 2, 2

    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    auth_bytes: bytes = wire("bytes", default=b"")
    session_lifetime_ms: int = wire("int64", since=1, default=0)
