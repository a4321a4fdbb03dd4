"""Signs requests as an `httpx.Auth`, with credentials that are refreshed before they expire."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

import attrs
import httpx

from kafscale.concurrency.sharing import Flight
from kafscale.errors import StoreError
from kafscale.http.client import fetch
from kafscale.store.s3.credentials import (
    ANSWER_MAX_BYTES,
    REFRESH_RETRY_SECONDS,
    HttpAnswer,
    HttpCall,
    Providers,
    refresh_at_seconds,
    search,
)
from kafscale.store.s3.replies import ErrorBody
from kafscale.store.s3.sigv4 import RequestSigner, S3Credentials

log = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class CredentialSource:
    """Holds credentials, which it looks up at first and again before they expire.

    `transport` makes the HTTP calls of providers. `clock` is in seconds since the epoch.
    """

    providers: Providers
    transport: httpx.AsyncBaseTransport
    clock: Callable[[], float] = time.time
    _held: S3Credentials | None = None
    _refresh_at_seconds: float = 0.0
    _refresh: Flight | None = None

    async def get(self) -> S3Credentials:
        """Return valid credentials. Raises AccessDenied, StoreUnavailable."""
        while True:
            held = self._held
            if held is not None and self.clock() < self._refresh_at_seconds:
                return held
            if self._refresh is None:
                return await self._look_up_again()
            if held is not None and self._is_good(held):
                return held
            await self._refresh.wait()

    def discard(self, credentials: S3Credentials) -> None:
        """Forget credentials that the store has refused as expired, unless they were replaced."""
        if self._held == credentials:
            self._held = None

    async def _look_up_again(self) -> S3Credentials:
        refresh, failure = Flight(), None
        self._refresh = refresh
        try:
            found = self._held = await self._look_up()
            self._refresh_at_seconds = refresh_at_seconds(found, self.clock())
            return found
        except StoreError as exc:
            held = self._held
            if held is None or not self._is_good(held):
                failure = exc
                raise
            log.warning("S3 credentials could not be refreshed, and expire at %s: %s", held.expires_at_seconds, exc)
            self._refresh_at_seconds = self.clock() + REFRESH_RETRY_SECONDS
            return held
        finally:
            self._refresh = None
            refresh.land(failure)

    async def _look_up(self) -> S3Credentials:
        lookup = search(self.providers)
        try:
            call = next(lookup)
            while True:
                call = lookup.send(await self._call(call))
        except StopIteration as stop:
            found: S3Credentials = stop.value
            return found

    async def _call(self, call: HttpCall) -> HttpAnswer | None:
        request = httpx.Request(call.method, call.url, headers=dict(call.headers), content=call.body)
        with suppress(httpx.TransportError):
            status, body = await fetch(
                self.transport,
                request,
                max_bytes=ANSWER_MAX_BYTES,
                timeout_seconds=call.timeout_seconds,
                deadline_seconds=call.deadline_seconds,
            )
            return HttpAnswer(status=status, body=body)
        return None

    def _is_good(self, credentials: S3Credentials) -> bool:
        return credentials.expires_at_seconds is None or self.clock() < credentials.expires_at_seconds


@attrs.define(eq=False, repr=False)
class SigV4Auth(httpx.Auth):
    """Signs requests, and again after a refusal for the clock or expired credentials."""

    source: CredentialSource
    region: str
    clock: Callable[[], float] = time.time
    _signer: RequestSigner = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._signer = RequestSigner(region=self.region, clock=self.clock)

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        """Yield the signed request, and be sent the response (httpx's protocol)."""
        credentials = await self.source.get()
        signed_at_seconds = self._sign(request, credentials)
        response = yield request
        if response.status_code not in (400, 403):
            return
        error = ErrorBody.of(await response.aread())
        if self._signer.learns_clock(response.headers.get("date", ""), error, signed_at_seconds):
            self._sign(request, credentials)
            response = yield request
        elif credentials.session_token is not None and error.is_expired:
            self.source.discard(credentials)
            self._sign(request, await self.source.get())
            response = yield request

    def _sign(self, request: httpx.Request, credentials: S3Credentials) -> float:
        return self._signer.sign(request.method, request.url.raw_path.decode("ascii"), request.headers, credentials)
