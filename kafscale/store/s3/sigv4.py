"""AWS Signature Version 4, and a signer whose clock follows the store's.

Imports neither trio nor httpx. For S3 the path is signed as it is sent: not normalised, not quoted twice. Source:
"Authenticating Requests (AWS Signature Version 4)" in the Amazon S3 API reference.
"""

from __future__ import annotations

import datetime
import email.utils
import functools
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from kafscale.store.s3.replies import ErrorBody


ALGORITHM = "AWS4-HMAC-SHA256"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()

# In place of the payload's hash: TLS already protects the body, so hashing it again buys nothing.
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"

# S3 allows a clock to be off by 15 minutes. A 403 from a server whose clock is further from ours than this is worth a
# second try with its time, whatever the reason for the first (a HEAD's reply has no body that would tell).
SKEW_SECONDS = 240
# A store that names the clock as its reason may allow less; dates are in whole seconds, and a reply takes its time.
NAMED_SKEW_SECONDS = 5

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class S3Credentials:
    """Keys that sign requests. `expires_at_seconds` is since the epoch; None is never."""

    access_key_id: str
    secret_access_key: str = attrs.field(repr=False)
    session_token: str | None = attrs.field(default=None, repr=False)
    expires_at_seconds: float | None = None


@attrs.frozen(kw_only=True)
class Signable:
    """The signed parts of a request.

    `target` is path and query as sent. `headers` have names in lower case, with `host`. `payload_hash` is the body's
    SHA-256 in hex, or `UNSIGNED_PAYLOAD`.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    payload_hash: str


@attrs.frozen(kw_only=True)
class SigningScope:
    """The time and place of a signature. `stamp` is the value of `x-amz-date`."""

    stamp: str
    region: str
    service: str = "s3"

    @property
    def path(self) -> str:
        """The credential scope: `20260102/us-east-1/s3/aws4_request`."""
        return f"{self.stamp[:8]}/{self.region}/{self.service}/aws4_request"


def amz_stamp(now_seconds: float) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_seconds))


def signature(signable: Signable, scope: SigningScope, secret_access_key: str) -> str:
    canonical = _canonical_request(signable)
    text = f"{ALGORITHM}\n{scope.stamp}\n{scope.path}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = _signing_key(secret_access_key, scope.path)
    return hmac.digest(key, text.encode(), "sha256").hex()


def authorization(signable: Signable, scope: SigningScope, credentials: S3Credentials) -> str:
    return (
        f"{ALGORITHM} Credential={credentials.access_key_id}/{scope.path}, "
        f"SignedHeaders={';'.join(sorted(signable.headers))}, "
        f"Signature={signature(signable, scope, credentials.secret_access_key)}"
    )


# A day's key is the same for every request, and four HMACs are a third of the cost of signing.
@functools.lru_cache(maxsize=16)
def _signing_key(secret_access_key: str, scope_path: str) -> bytes:
    key = b"AWS4" + secret_access_key.encode()
    for part in scope_path.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _canonical_request(signable: Signable) -> str:
    path, _, query = signable.target.partition("?")
    lines = [signable.method, path, _canonical_query(query)]
    lines += [f"{name}:{' '.join(value.split())}" for name, value in sorted(signable.headers.items())]
    lines += ["", ";".join(sorted(signable.headers)), signable.payload_hash]
    return "\n".join(lines)


def _canonical_query(query: str) -> str:
    if not query:
        return ""
    # Sorted by name, then value: sorting "name=value" as text would put "a-b=1" before "a=1".
    pairs = sorted(pair.partition("=")[::2] for pair in query.split("&"))
    return "&".join(f"{name}={value}" for name, value in pairs)


@attrs.define(eq=False, kw_only=True, repr=False)
class RequestSigner:
    """Signs for S3 in a region. The payload's hash is the request's `x-amz-content-sha256`."""

    region: str
    clock: Callable[[], float] = time.time
    _skew_seconds: float = attrs.field(default=0.0, init=False)

    def sign(self, method: str, target: str, headers: MutableMapping[str, str], credentials: S3Credentials) -> float:
        """Add the signature to the headers, whose names are in lower case; `target` is as sent.

        Returns the signed time in seconds since the epoch.
        """
        now_seconds = self.clock() + self._skew_seconds
        stamp = amz_stamp(now_seconds)
        headers["x-amz-date"] = stamp
        if credentials.session_token is not None:
            headers["x-amz-security-token"] = credentials.session_token
        signed = {name: value for name, value in headers.items() if _is_signed(name)}
        signable = Signable(
            method=method,
            target=target,
            headers=signed,
            payload_hash=headers.get("x-amz-content-sha256", EMPTY_SHA256),
        )
        headers["authorization"] = authorization(signable, SigningScope(stamp=stamp, region=self.region), credentials)
        return now_seconds

    def learns_clock(self, date: str, error: ErrorBody, signed_at_seconds: float) -> bool:
        """Adopt the store's time if it refused a request signed with a time far from it.

        `date` is the reply's `Date`; the body of `error` may have the time too. Returns True if another try is useful.
        """
        server_seconds = error.server_seconds if error.is_about_clocks else None
        if server_seconds is None:
            server_seconds = _seconds(date)
        if server_seconds is None:
            return False
        least_seconds = NAMED_SKEW_SECONDS if error.is_about_clocks else SKEW_SECONDS
        if abs(server_seconds - signed_at_seconds) < least_seconds:
            return False
        skew_seconds = server_seconds - self.clock()
        if abs(skew_seconds - self._skew_seconds) >= least_seconds:  # else another request has found out meanwhile
            side = "behind" if skew_seconds > 0 else "ahead of"
            logger.warning(
                "this machine's clock is %.0f s %s the object store's, whose time signs requests from now on; set this "
                "machine's clock by NTP",
                abs(skew_seconds),
                side,
            )
            self._skew_seconds = skew_seconds
        return True


def _seconds(date: str) -> float | None:
    """Read an HTTP date, which is in UTC whatever its zone."""
    try:
        found = email.utils.parsedate_to_datetime(date)
    except ValueError:
        return None
    return (found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)).timestamp()


def _is_signed(name: str) -> bool:
    # What S3 demands, and what changes the meaning of a request; not what a proxy may rewrite.
    return name.startswith("x-amz-") or name in ("host", "range", "if-match", "if-none-match", "content-md5")
