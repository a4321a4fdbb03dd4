"""Signing requests, with a clock that learns. Imports neither trio nor httpx: readers that block sign with it too.

The signature itself is `kafscale.store.s3.sigv4`'s.
"""

from __future__ import annotations

import datetime
import email.utils
import logging
import time
from collections.abc import Callable, MutableMapping

import attrs

from kafscale.store.s3.replies import ErrorBody
from kafscale.store.s3.sigv4 import EMPTY_SHA256, Credentials, Scope, Signable, amz_stamp, authorization

log = logging.getLogger(__name__)

# S3 allows a clock to be off by 15 minutes. A 403 from a server whose clock is further from ours than this is worth a
# second try with its time, whatever the reason for the first (a HEAD's reply has no body that would tell).
SKEW_SECONDS = 240
# A store that names the clock as its reason may allow less; dates are in whole seconds, and a reply takes its time.
NAMED_SKEW_SECONDS = 5


@attrs.define(eq=False, kw_only=True, repr=False)
class RequestSigner:
    """Signs for S3 in a region. The payload's hash is taken from the request's `x-amz-content-sha256`."""

    region: str
    clock: Callable[[], float] = time.time
    _skew_seconds: float = attrs.field(default=0.0, init=False)

    def sign(self, method: str, target: str, headers: MutableMapping[str, str], credentials: Credentials) -> float:
        """Add the headers to those of a request, whose names are in lower case; `target` is as it is sent.

        Returns the time, in seconds since the epoch, that the signature claims.
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
        headers["authorization"] = authorization(signable, Scope(stamp=stamp, region=self.region), credentials)
        return now_seconds

    def learns_clock(self, date: str, error: ErrorBody, signed_at_seconds: float) -> bool:
        """Sign with a store's time from now on, if it refused a request that was signed with a time far from it.

        `date` is the reply's `Date`; the body of `error` may have the time, too. Returns True if the request is worth
        another try.
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
            log.warning(
                "this machine's clock is %.0f s %s the object store's, whose time signs requests from now on; set this "
                "machine's clock by NTP",
                abs(skew_seconds),
                side,
            )
            self._skew_seconds = skew_seconds
        return True


def _seconds(date: str) -> float | None:
    """Read an HTTP date, which is in UTC whatever it says of its zone."""
    try:
        found = email.utils.parsedate_to_datetime(date)
    except ValueError:
        return None
    return (found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)).timestamp()


def _is_signed(name: str) -> bool:
    # What S3 demands, and what changes the meaning of a request; not what a proxy may rewrite.
    return name.startswith("x-amz-") or name in ("host", "range", "if-match", "if-none-match", "content-md5")
