"""The keys that sign tokens, as their issuer publishes them: read from a file or a URL, remembered, and read again.

They are read at the start, every `--sasl-oauthbearer-jwks-endpoint-refresh`, and when a token names a key that is not
known, but not again for that within some seconds, as anybody can make up tokens. Where they can't be read, those from
before go on to count, with a warning. All of it is done in a thread, and bounded.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import attrs
import trio

from kafscale.config import SaslSettings
from kafscale.escaping import bounded

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

READ_SECONDS = 10.0  # for one attempt, as a whole
PAUSE_LEAST_SECONDS = 10.0  # between two reads for keys that are not known; Kafka's, too
RETRY_LEAST_SECONDS, RETRY_MOST_SECONDS = 0.1, 10.0  # Kafka: sasl.oauthbearer.jwks.endpoint.retry.backoff(.max).ms
REASON_MAX_COUNT = 200

logger = logging.getLogger(__name__)


@attrs.define(eq=False, kw_only=True, repr=False)
class PublishedKeys:
    """Knows the keys of one issuer; none where `url` is None."""

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
        """Read them again and again until cancelled."""
        retry_seconds = RETRY_LEAST_SECONDS
        while self.url is not None:
            async with self._reading:
                was_read = await self._read()
            if was_read:
                retry_seconds = RETRY_LEAST_SECONDS
                await trio.sleep(self.refresh_seconds)
            else:
                await trio.sleep(min(retry_seconds, self.refresh_seconds))
                retry_seconds = min(2 * retry_seconds, RETRY_MOST_SECONDS)

    async def fetch(self) -> None:
        """Read them now, unless that was done lately. Returns when it has been tried."""
        if self.url is None:
            return
        async with self._reading:  # whoever waited for another one's read finds it done
            if self._read_at is None or trio.current_time() - self._read_at >= self.pause_seconds:
                await self._read()

    async def _read(self) -> bool:
        import httpx  # a broker without tokens starts without it

        assert self.url is not None
        self._read_at = trio.current_time()
        with trio.move_on_after(READ_SECONDS) as scope:
            try:
                self.current = await trio.to_thread.run_sync(_read_keys, self.url, abandon_on_cancel=True)
            except (OSError, httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
                reason = bounded(str(exc) or type(exc).__name__, REASON_MAX_COUNT)
                logger.warning("the keys that sign tokens can't be read from %s: %s", self.url, reason)
                return False
        if scope.cancelled_caught:
            logger.warning("the keys that sign tokens are not read from %s in %g s", self.url, READ_SECONDS)
        return not scope.cancelled_caught


def _read_keys(url: str) -> KeySet:
    """Read and take apart what is at a URL; blocks. Raises OSError, httpx.HTTPError, httpx.InvalidURL, ValueError."""
    import httpx

    from kafscale.security.tokens import KEY_SET_MAX_BYTES, parse_key_set

    parts = urlsplit(url)
    if parts.scheme == "file":
        with Path(unquote(parts.path)).open("rb") as file:
            return parse_key_set(file.read(KEY_SET_MAX_BYTES + 1))
    data = bytearray()
    until = time.monotonic() + READ_SECONDS
    with (
        httpx.Client(follow_redirects=False, timeout=READ_SECONDS) as client,
        client.stream("GET", url, headers={"Accept": "application/json"}) as response,
    ):
        if response.status_code != httpx.codes.OK:
            raise ValueError(f"it answers {response.status_code}")
        for piece in response.iter_bytes():
            data += piece
            if len(data) > KEY_SET_MAX_BYTES or time.monotonic() > until:
                raise ValueError(f"it is larger than {KEY_SET_MAX_BYTES} bytes, or takes too long")
    return parse_key_set(bytes(data))
