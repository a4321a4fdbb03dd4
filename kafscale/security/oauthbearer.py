"""OAUTHBEARER (RFC 7628): a signed token that names the user, checked by the library joserfc.

    client  n,[a=AUTHORIZATION-ID],^Aauth=Bearer TOKEN^A[KEY=VALUE^A]...^A        server  nothing
                                                    or, if the token is refused  server  {"status":"invalid_token"}
                                                                                 client  ^A      then it has failed

Extensions (KIP-342) have no effect. Tokens are JSON Web Tokens (RFC 7519), signed by a key of a set (RFC 7517). Only
signatures by key pairs are allowed: neither `none`, nor shared secrets, which a public key could pose as.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import attrs
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import ECKey, JWKRegistry, Key, KeySet, RSAKey

from kafscale.config.security_settings import SaslSettings
from kafscale.security.exchanges import Challenge, FetchKeys, Granted, Refused, Steps
from kafscale.security.verifiers import USER_NAME_MAX_BYTES

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
TOKEN_MAX_BYTES: Final = 16 << 10
KEYS_MAX_COUNT: Final = 100
KEY_SET_MAX_BYTES: Final = 1 << 20
RSA_LEAST_BITS, RSA_MOST_BITS = 2048, 8192  # to check a signature by one of 8192 takes 0.3 ms

NO_KEYS: Final = KeySet([])


class TokenRefused(Exception):
    """A refused token; the message quotes only names of claims."""


class UnknownKey(Exception):
    """A token is signed by a key that is not in the set; `args[0]` names it."""


@attrs.frozen
class Claims:
    """The user that a token names, and its expiry in milliseconds since 1970."""

    name: str
    expires_at_ms: int


def parse_key_set(data: bytes) -> KeySet:
    """Read the usable keys of a JSON Web Key Set. Raises ValueError without any."""
    if len(data) > KEY_SET_MAX_BYTES:
        raise ValueError(f"a key set of {len(data)} bytes; the limit is {KEY_SET_MAX_BYTES}")
    try:
        found = json.loads(data)["keys"]
        keys: list[Key] = [key for entry in found[:KEYS_MAX_COUNT] if (key := _key(entry)) is not None]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise ValueError("it is not a JSON Web Key Set") from exc
    if not keys:
        raise ValueError(f"it has no key for any of {', '.join(ALGORITHMS)}")
    return KeySet(keys)


def _key(data: dict[str, Any]) -> RSAKey | ECKey | None:
    if data.get("kty") not in ("RSA", "EC") or data.get("use", "sig") != "sig":
        return None
    if data["kty"] == "RSA" and not RSA_LEAST_BITS <= 6 * len(str(data.get("n"))) <= RSA_MOST_BITS + 6:
        return None  # before the library, which warns of it
    try:
        key = JWKRegistry.import_key(data)
    except (JoseError, ValueError, TypeError, KeyError, OverflowError):
        return None
    if isinstance(key, ECKey):
        return key if key.curve_name in ("P-256", "P-384", "P-521") else None
    if isinstance(key, RSAKey) and RSA_LEAST_BITS <= key.public_key.key_size <= RSA_MOST_BITS:
        return key
    return None


@attrs.frozen
class TokenPolicy:
    """Requirements of a token, by the settings."""

    settings: SaslSettings

    def check(self, token: str, keys: KeySet, now_ms: int) -> Claims:
        """Return the claims of a valid token. Raises TokenRefused, UnknownKey."""
        if len(token) > TOKEN_MAX_BYTES:
            raise TokenRefused(f"a token of {len(token)} characters; the limit is {TOKEN_MAX_BYTES}")
        try:
            claims = jwt.decode(token, keys, algorithms=ALGORITHMS).claims
        except InvalidKeyIdError as exc:
            raise UnknownKey(str(exc)[:200]) from exc
        except (JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
            raise TokenRefused(f"it can't be read, or its signature is wrong ({type(exc).__name__})") from exc
        return self._check_claims(claims, now_ms)

    def _check_claims(self, claims: dict[str, Any], now_ms: int) -> Claims:
        settings, name_claim = self.settings, self.settings.sasl_oauthbearer_sub_claim_name
        scope_claim = settings.sasl_oauthbearer_scope_claim_name
        name = claims.get(name_claim)
        if not isinstance(name, str) or not 0 < len(name.encode(errors="replace")) <= USER_NAME_MAX_BYTES:
            raise TokenRefused(f"its claim '{name_claim}' is not a user name")
        issuer = settings.sasl_oauthbearer_expected_issuer
        if issuer is not None and claims.get("iss") != issuer:
            raise TokenRefused("its claim 'iss' is not the expected issuer")
        self._check_audience(claims.get("aud"))
        if missing := set(settings.sasl_oauthbearer_required_scopes) - _scopes(claims.get(scope_claim)):
            raise TokenRefused(f"its claim '{scope_claim}' lacks {', '.join(sorted(missing))}")
        return Claims(name, self._check_times(claims, now_ms))

    def _check_audience(self, audience: object) -> None:
        expected = self.settings.sasl_oauthbearer_expected_audience
        named = {audience} if isinstance(audience, str) else audience
        if named is None:
            named = set()
        if not isinstance(named, set | list) or not all(isinstance(item, str) for item in named):
            raise TokenRefused("its claim 'aud' is neither a string nor a list of strings")
        if expected and not set(named) & set(expected):
            raise TokenRefused("its claim 'aud' has no expected audience")
        if named and not expected:  # RFC 7519, 4.1.3
            raise TokenRefused("it is for an audience, and --sasl-oauthbearer-expected-audience is not given")

    def _check_times(self, claims: dict[str, Any], now_ms: int) -> int:
        now_seconds, skew_seconds = now_ms / 1000, self.settings.sasl_oauthbearer_clock_skew_seconds
        expires_at = _time(claims, "exp")
        if expires_at is None:
            raise TokenRefused("its claim 'exp' is missing")
        if expires_at + skew_seconds <= now_seconds:
            raise TokenRefused("it has expired")
        for claim in ("nbf", "iat"):
            begins_at = _time(claims, claim)
            if begins_at is not None and begins_at - skew_seconds > now_seconds:
                raise TokenRefused(f"it is not valid yet, by its claim '{claim}'")
        return int(expires_at * 1000)


def _time(claims: dict[str, Any], claim: str) -> float | None:
    """Return a claim in seconds since 1970."""
    value = claims.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused(f"its claim '{claim}' is not a time")
    if not 0 <= value < 1 << 40:  # which neither inf nor nan is
        raise TokenRefused(f"its claim '{claim}' is not a time")
    return float(value)


def _scopes(value: object) -> set[str]:
    if isinstance(value, str):
        return set(value.split())
    return {item for item in value if isinstance(item, str)} if isinstance(value, list) else set()


MESSAGE_MAX_BYTES = 2 * TOKEN_MAX_BYTES  # with extensions
INVALID_TOKEN = '{"status":"invalid_token"}'
_FIRST = re.compile(r"n,(?:a=([^,\x00-\x1f]{0,1024}))?,\x01((?:[A-Za-z]{1,256}=[^\x00\x01]*\x01){1,64})\x01", re.DOTALL)
_BEARER = re.compile(r"bearer ([A-Za-z0-9._~+/=-]+)", re.IGNORECASE)


def oauthbearer(policy: TokenPolicy, keys: Callable[[], KeySet]) -> Steps:
    """Return the steps of a login. `keys` returns the present keys."""
    data, now_ms = yield None
    if len(data) > MESSAGE_MAX_BYTES:
        return Refused(f"a message of {len(data)} bytes; the limit is {MESSAGE_MAX_BYTES}")
    found = _parse(data)
    if found is None:
        return Refused("a message that is not as RFC 7628 has it")
    authorization_id, token = found
    try:
        try:
            claims = policy.check(token, keys(), now_ms)
        except UnknownKey as exc:
            _, now_ms = yield FetchKeys(str(exc))
            claims = policy.check(token, keys(), now_ms)
    except (UnknownKey, TokenRefused) as exc:
        is_unknown = isinstance(exc, UnknownKey)
        why = "a token that is signed by a key which is not known" if is_unknown else f"a token that is refused: {exc}"
        yield Challenge(INVALID_TOKEN.encode())
        return Refused(why, INVALID_TOKEN)  # whatever the client says of it
    if authorization_id not in ("", claims.name):
        return Refused(
            "an authorization id that is not the token's name",
            "Authentication failed: Client requested an authorization id that is different from the token's "
            "principal name",
        )
    return Granted(claims.name, expires_at_ms=claims.expires_at_ms)


def _parse(data: bytes) -> tuple[str, str] | None:
    """Return the authorization id and the token of a client's first message; None for an invalid one."""
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
