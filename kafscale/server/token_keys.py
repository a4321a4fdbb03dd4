"""The keys that sign tokens, read from a file or URL at the start, every hour, and when a token names an unknown key.

The latter happens at most every PAUSE_LEAST_SECONDS, as anyone can invent tokens. While a read fails, the earlier keys
stay. Time and size of a read are bounded, and keys are parsed in a thread.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import attrs
import trio

from kafscale.backoff import Backoff
from kafscale.config import SaslSettings
from kafscale.escaping import bounded

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

READ_SECONDS = 10.0  # for one attempt, as a whole
PAUSE_LEAST_SECONDS = 10.0  # between two reads for keys that are not known; Kafka's, too
BACKOFF = Backoff(0.1, 10.0)  # Kafka: sasl.oauthbearer.jwks.endpoint.retry.backoff(.max).ms
REASON_MAX_COUNT = 200

logger = logging.getLogger(__name__)


@attrs.define(eq=False, kw_only=True, repr=False)
class PublishedKeys:
    """The keys of one issuer; none if `url` is None."""

    url: str | None
    refresh_seconds: float
    pause_seconds: float = PAUSE_LEAST_SECONDS
    current: KeySet | None = attrs.field(default=None, init=False)
    _read_at: float | None = attrs.field(default=None, init=False)
    _reading: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @classmethod
    def of(cls, settings: SaslSettings) -> PublishedKeys:
        return cls(
            url=settings.sasl_oauthbearer_jwks_endpoint_url,
            refresh_seconds=settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000,
        )

    async def run(self) -> None:
        """Read the keys again and again until cancelled."""
        failures_count = 0
        while self.url is not None:
            async with self._reading:
                was_read = await self._read()
            if was_read:
                failures_count = 0
                await trio.sleep(self.refresh_seconds)
            else:
                await trio.sleep(min(BACKOFF.seconds(failures_count), self.refresh_seconds))
                failures_count += 1

    async def fetch(self) -> None:
        """Read the keys now, unless that was done recently."""
        if self.url is None:
            return
        async with self._reading:  # a task that waited for another one's read finds it done
            if self._read_at is None or trio.current_time() - self._read_at >= self.pause_seconds:
                await self._read()

    async def _read(self) -> bool:
        import httpx  # a broker without tokens starts without it

        from kafscale.security.oauthbearer import parse_key_set

        assert self.url is not None
        self._read_at = trio.current_time()
        with trio.move_on_after(READ_SECONDS) as scope:
            try:
                data = await self._receive(self.url)
                self.current = await trio.to_thread.run_sync(parse_key_set, data, abandon_on_cancel=True)
            except (OSError, httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
                reason = bounded(str(exc) or type(exc).__name__, REASON_MAX_COUNT)
                logger.warning("the keys that sign tokens can't be read from %s: %s", self.url, reason)
                return False
        if scope.cancelled_caught:
            logger.warning("the keys that sign tokens are not read from %s in %g s", self.url, READ_SECONDS)
        return not scope.cancelled_caught

    async def _receive(self, url: str) -> bytes:
        """Return the file or the answer at a URL. Raises OSError, httpx.HTTPError, httpx.InvalidURL, ValueError."""
        import httpx

        from kafscale.http.client import TrioTransport, fetch
        from kafscale.security.oauthbearer import KEY_SET_MAX_BYTES

        parts = urlsplit(url)
        if parts.scheme == "file":
            return await trio.to_thread.run_sync(
                _read_file, unquote(parts.path), KEY_SET_MAX_BYTES + 1, abandon_on_cancel=True
            )
        request = httpx.Request("GET", url, headers={"accept": "application/json"})
        transport = TrioTransport()
        try:
            status, body = await fetch(transport, request, max_bytes=KEY_SET_MAX_BYTES, timeout_seconds=READ_SECONDS)
        finally:
            await transport.aclose()
        if status != httpx.codes.OK:
            raise ValueError(f"it answers {status}")
        return body


def _read_file(path: str, max_bytes: int) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(max_bytes)
