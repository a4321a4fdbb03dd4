"""OAUTHBEARER (RFC 7628): a token that names the user.

    client  n,[a=AUTHORIZATION-ID],^Aauth=Bearer TOKEN^A[KEY=VALUE^A]...^A        server  nothing
                                                    or, if the token is refused  server  {"status":"invalid_token"}
                                                                                 client  ^A      then it has failed

Extensions (KIP-342) are read and have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import attrs
from joserfc.jwk import KeySet

from kafscale.security.exchanges import Challenge, FetchKeys, Granted, Outcome, Refused
from kafscale.security.tokens import TOKEN_MAX_BYTES, TokenPolicy, TokenRefused, UnknownKey

MESSAGE_MAX_BYTES = 2 * TOKEN_MAX_BYTES  # with extensions
INVALID_TOKEN = '{"status":"invalid_token"}'
_FIRST = re.compile(r"n,(?:a=([^,\x00-\x1f]{0,1024}))?,\x01((?:[A-Za-z]{1,256}=[^\x00\x01]*\x01){1,64})\x01", re.DOTALL)
_BEARER = re.compile(r"bearer ([A-Za-z0-9._~+/=-]+)", re.IGNORECASE)


@attrs.define(eq=False, repr=False)
class OauthbearerExchange:
    """The broker's side of one login. `keys` are asked for anew after they have been fetched."""

    policy: TokenPolicy
    keys: Callable[[], KeySet]
    _authorization_id: str = attrs.field(default="", init=False)
    _token: str = attrs.field(default="", init=False)
    _refusal: str | None = attrs.field(default=None, init=False)

    def receive(self, data: bytes, now_ms: int) -> Outcome:
        if self._refusal is not None:  # whatever the client says of it
            return Refused(self._refusal, INVALID_TOKEN)
        if len(data) > MESSAGE_MAX_BYTES:
            return Refused(f"a message of {len(data)} bytes; the limit is {MESSAGE_MAX_BYTES}")
        found = _parse(data)
        if found is None:
            return Refused("a message that is not as RFC 7628 has it")
        self._authorization_id, self._token = found
        return self._check(now_ms, may_fetch=True)

    def resume(self, result: bytes, now_ms: int) -> Outcome:
        return self._check(now_ms, may_fetch=False)

    def _check(self, now_ms: int, *, may_fetch: bool) -> Outcome:
        try:
            claims = self.policy.check(self._token, self.keys(), now_ms)
        except UnknownKey as exc:
            if may_fetch:
                return FetchKeys(str(exc))
            return self._refuse("a token that is signed by a key which is not known")
        except TokenRefused as exc:
            return self._refuse(f"a token that is refused: {exc}")
        if self._authorization_id not in ("", claims.name):
            return Refused(
                "an authorization id that is not the token's name",
                "Authentication failed: Client requested an authorization id that is different from the token's "
                "principal name",
            )
        return Granted(claims.name, expires_at_ms=claims.expires_at_ms)

    def _refuse(self, why: str) -> Outcome:
        self._refusal = why
        return Challenge(INVALID_TOKEN.encode())


def _parse(data: bytes) -> tuple[str, str] | None:
    """Return the authorization id and the token of a client's first message; None if it is none."""
    try:
        found = _FIRST.fullmatch(data.decode())
    except UnicodeDecodeError:
        return None
    if found is None:
        return None
    pairs = [pair.partition("=") for pair in found[2].split("\x01")[:-1]]
    values = [value for key, _, value in pairs if key == "auth"]
    bearer = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    return None if bearer is None else ((found[1] or "").replace("=2C", ",").replace("=3D", "="), bearer[1])
