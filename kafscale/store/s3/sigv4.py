"""AWS Signature Version 4, as a pure function of a request, a scope and credentials.

Shared by the broker (through `kafscale.store.s3.auth`), by readers that block, and by the stand-in server, which checks
signatures with it. Imports neither trio nor httpx. Source: "Authenticating Requests (AWS Signature Version 4)" in the
Amazon S3 API reference. For S3 the path is signed as it stands on the wire: not normalised, not quoted twice.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import time
from collections.abc import Mapping

import attrs

ALGORITHM = "AWS4-HMAC-SHA256"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()

# In place of the payload's hash: TLS already protects the body, so hashing it again buys nothing.
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"


@attrs.frozen(kw_only=True)
class Credentials:
    """Keys that sign requests. `expires_at_seconds` is in seconds since the epoch; None is never."""

    access_key_id: str
    secret_access_key: str = attrs.field(repr=False)
    session_token: str | None = attrs.field(default=None, repr=False)
    expires_at_seconds: float | None = None


@attrs.frozen(kw_only=True)
class Signable:
    """What a signature covers.

    `target` is path and query as on the wire. `headers` are those to sign, names in lower case, `host` among them.
    `payload_hash` is the body's SHA-256 in hex, or `UNSIGNED_PAYLOAD`.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    payload_hash: str


@attrs.frozen(kw_only=True)
class Scope:
    """Says when and where a signature is good. `stamp` is the value of `x-amz-date`."""

    stamp: str
    region: str
    service: str = "s3"

    @property
    def path(self) -> str:
        """The credential scope: `20260102/us-east-1/s3/aws4_request`."""
        return f"{self.stamp[:8]}/{self.region}/{self.service}/aws4_request"


def amz_stamp(now_seconds: float) -> str:
    """The time as `x-amz-date` wants it."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_seconds))


def signature(signable: Signable, scope: Scope, secret_access_key: str) -> str:
    """The signature in hex."""
    canonical = _canonical_request(signable)
    text = f"{ALGORITHM}\n{scope.stamp}\n{scope.path}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = _signing_key(secret_access_key, scope.path)
    return hmac.digest(key, text.encode(), "sha256").hex()


def authorization(signable: Signable, scope: Scope, credentials: Credentials) -> str:
    """The value of the `Authorization` header."""
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
