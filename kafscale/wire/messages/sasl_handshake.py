"""SaslHandshake (key 17, versions 0 to 1): by which mechanism a client wants to authenticate."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import NEVER, Array, wire


@attrs.define(kw_only=True)
class SaslHandshakeRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 17, 0, 1, NEVER

    mechanism: str = wire("string")


@attrs.define(kw_only=True)
class SaslHandshakeResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 17, 0, 1, NEVER

    error_code: int = wire("int16", default=0)
    mechanisms: list[str] = wire(Array("string"), factory=list)
