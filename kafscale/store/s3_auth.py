"""Signing as an `httpx.Auth`, with credentials that are refreshed before they expire and a clock that learns.

The signature itself is `kafscale.store.sigv4`'s, the places to look for credentials are `kafscale.store.credentials`'s;
here is what has to wait and to remember.
"""

from __future__ import annotations

import email.utils
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence

import attrs
import httpx
import trio

from kafscale.errors import StoreError
from kafscale.store.credentials import HttpAnswer, HttpCall, Provider, search
from kafscale.store.s3_replies import ErrorBody
from kafscale.store.sigv4 import EMPTY_SHA256, Credentials, Scope, Signable, amz_stamp, authorization

log = logging.getLogger(__name__)

# Before expiry: as the AWS SDKs do, early enough for a service that is down for some minutes.
REFRESH_AHEAD_SECONDS = 600
# A refresh that failed while the old credentials are good is tried again this much later.
REFRESH_RETRY_SECONDS = 30

# S3 allows a clock to be off by 15 minutes. A 403 from a server whose clock is further from ours than this is worth a
# second try with its time, whatever the reason for the first (a HEAD's reply has no body that would tell).
SKEW_SECONDS = 240

EXPIRED_CODES = frozenset({"ExpiredToken", "TokenRefreshRequired"})


@attrs.define(eq=False)
class _Refresh:
    """A refresh under way: one task does it, the others wait for it and share its outcome."""

    is_done: trio.Event = attrs.field(factory=trio.Event)
    error: StoreError | None = None


@attrs.define(eq=False)
class CredentialSource:
    """Holds credentials, looks them up when there are none, and again before they expire.

    `transport` makes the HTTP calls that providers need. `clock` is in seconds since the epoch.
    """

    providers: Sequence[Provider]
    transport: httpx.AsyncBaseTransport
    clock: Callable[[], float] = time.time
    _held: Credentials | None = None
    _refresh_at_seconds: float = 0.0
    _refresh: _Refresh | None = None

    async def get(self) -> Credentials:
        """Credentials that are good now. Raises AccessDenied, saying what was tried, and StoreUnavailable."""
        while True:
            held = self._held
            if held is not None and self.clock() < self._refresh_at_seconds:
                return held
            if self._refresh is None:
                return await self._look_up_again()
            if held is not None and self._is_good(held):
                return held
            refresh = self._refresh
            await refresh.is_done.wait()
            if refresh.error is not None:
                raise type(refresh.error)(*refresh.error.args) from refresh.error

    def discard(self, credentials: Credentials) -> None:
        """Forget these credentials, which the store has refused as expired, unless others are held already."""
        if self._held == credentials:
            self._held = None

    async def _look_up_again(self) -> Credentials:
        refresh = self._refresh = _Refresh()
        try:
            found = self._held = await self._look_up()
            self._refresh_at_seconds = float("inf")
            if found.expires_at_seconds is not None:
                # Short-lived ones are refreshed at half of their life, rather than with every request.
                life_seconds = found.expires_at_seconds - self.clock()
                ahead_seconds = min(REFRESH_AHEAD_SECONDS, max(0, life_seconds) / 2)
                self._refresh_at_seconds = found.expires_at_seconds - ahead_seconds
            return found
        except StoreError as exc:
            held = self._held
            if held is None or not self._is_good(held):
                refresh.error = exc
                raise
            log.warning("S3 credentials could not be refreshed, and expire at %s: %s", held.expires_at_seconds, exc)
            self._refresh_at_seconds = self.clock() + REFRESH_RETRY_SECONDS
            return held
        finally:
            self._refresh = None
            refresh.is_done.set()

    async def _look_up(self) -> Credentials:
        lookup = search(self.providers)
        try:
            call = next(lookup)
            while True:
                call = lookup.send(await self._call(call))
        except StopIteration as stop:
            found: Credentials = stop.value
            return found

    async def _call(self, call: HttpCall) -> HttpAnswer | None:
        phases = ("connect", "read", "write", "pool")
        timeouts = dict.fromkeys(phases, call.timeout_seconds)
        request = httpx.Request(
            call.method, call.url, headers=dict(call.headers), content=call.body, extensions={"timeout": timeouts}
        )
        try:
            response = await self.transport.handle_async_request(request)
            body = await response.aread()
        except httpx.TransportError:
            return None
        return HttpAnswer(status=response.status_code, body=body)

    def _is_good(self, credentials: Credentials) -> bool:
        return credentials.expires_at_seconds is None or self.clock() < credentials.expires_at_seconds


@attrs.define(eq=False)
class SigV4Auth(httpx.Auth):
    """Signs requests; once more where the clocks or the credentials' age were the reason for a refusal.

    The payload's hash is taken from the request's `x-amz-content-sha256`.
    """

    source: CredentialSource
    region: str
    clock: Callable[[], float] = time.time
    _skew_seconds: float = 0.0

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """httpx's protocol: yields the signed request, and is sent the response."""
        credentials = await self.source.get()
        signed_at_seconds = self._sign(request, credentials)
        response = yield request
        if response.status_code not in (400, 403):
            return
        if self._adjusts_clock(response, signed_at_seconds):
            self._sign(request, credentials)
            response = yield request
        elif credentials.session_token is not None and ErrorBody.of(await response.aread()).code in EXPIRED_CODES:
            self.source.discard(credentials)
            self._sign(request, await self.source.get())
            response = yield request

    def _sign(self, request: httpx.Request, credentials: Credentials) -> float:
        """Add the headers. Returns the time, in seconds since the epoch, that the signature claims."""
        headers = request.headers
        now_seconds = self.clock() + self._skew_seconds
        stamp = amz_stamp(now_seconds)
        headers["x-amz-date"] = stamp
        if credentials.session_token is not None:
            headers["x-amz-security-token"] = credentials.session_token
        signed = {name: value for name, value in headers.items() if _is_signed(name)}
        signable = Signable(
            method=request.method,
            target=request.url.raw_path.decode("ascii"),
            headers=signed,
            payload_hash=headers.get("x-amz-content-sha256", EMPTY_SHA256),
        )
        headers["authorization"] = authorization(signable, Scope(stamp=stamp, region=self.region), credentials)
        return now_seconds

    def _adjusts_clock(self, response: httpx.Response, signed_at_seconds: float) -> bool:
        """Take over the time of a server that refused us, if it is far from the one that we signed with."""
        try:
            server_seconds = email.utils.parsedate_to_datetime(response.headers["date"]).timestamp()
        except (KeyError, ValueError):
            return False
        if abs(server_seconds - signed_at_seconds) < SKEW_SECONDS:
            return False
        skew_seconds = server_seconds - self.clock()
        if abs(skew_seconds - self._skew_seconds) >= SKEW_SECONDS:  # else another request has found out meanwhile
            log.warning("this machine's clock is %.0f s off the object store's, whose time now signs", -skew_seconds)
            self._skew_seconds = skew_seconds
        return True


def _is_signed(name: str) -> bool:
    # What S3 demands, and what changes the meaning of a request; not what a proxy may rewrite.
    return name.startswith("x-amz-") or name in ("host", "range", "if-match", "if-none-match", "content-md5")
