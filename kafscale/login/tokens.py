"""Tokens of OAUTHBEARER, from a file or from an issuer's token endpoint.

An endpoint is asked with the client's credentials (RFC 6749, section 4.4), like Kafka's ClientCredentialsJwtRetriever:
id and secret in the header, the scope in the body. A token is used for logins until most of its life is over. Getting
one blocks.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import socket
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import attrs

from kafscale.backoff import Backoff
from kafscale.errors import BrokerUnavailable, ConfigError, KafkaError
from kafscale.escaping import bounded, escaped
from kafscale.wire.error_codes import SASL_AUTHENTICATION_FAILED

TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
REFRESH_FRACTION = 0.8  # of a token's life: then another one is asked for. Kafka: sasl.login.refresh.window.factor
ATTEMPTS_COUNT = 3
BACKOFF = Backoff(0.1)  # Kafka: sasl.login.retry.backoff.ms
ANSWER_SECONDS = 10.0  # for one attempt
ANSWER_MAX_BYTES = 64 << 10
LASTS_MAX_SECONDS = 1 << 40  # a longer one is not credible
REASON_MAX_COUNT = 200
_TOKEN = re.compile(r"[!-~]+")  # what a header, and SASL's message, may have


@attrs.frozen
class BearerToken:
    """A token, and its expiry in seconds since 1970, if known."""

    text: str = attrs.field(repr=False)
    expires_at: float | None = None


@attrs.frozen
class TokenFile:
    path: Path

    def get(self) -> BearerToken:
        """Raises ConfigError."""
        try:
            text = self.path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"{TOKEN_URL}: '{self.path}' can't be read: {exc}") from exc
        return BearerToken(text, expiry_of(text))


@attrs.frozen
class GivenToken:
    """A token that a user gave. Raises ValueError for characters that no token has."""

    text: str = attrs.field(repr=False)

    def __attrs_post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.text):
            raise ValueError("A token has printable ASCII characters and no spaces.")

    def get(self) -> BearerToken:
        return BearerToken(self.text, expiry_of(self.text))


@attrs.define(kw_only=True)
class TokenEndpoint:
    """An issuer's endpoint and its client. Threads may share it: one asks, and the others wait. With
    `quotes_credentials` it quotes id and secret as in a URL, which RFC 6749 demands and many issuers do not expect.
    """

    url: str
    client_id: str
    client_secret: str = attrs.field(repr=False)
    scope: str | None = None
    quotes_credentials: bool = False
    context: ssl.SSLContext | None = attrs.field(default=None, repr=False, eq=False)
    _asking: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False, eq=False)
    _token: BearerToken | None = attrs.field(default=None, init=False, repr=False, eq=False)
    _use_until: float = attrs.field(default=0.0, init=False, repr=False, eq=False)

    def get(self) -> BearerToken:
        """Return a token with enough life left, or, without an answer, any valid one. Raises KafkaError,
        BrokerUnavailable.
        """
        with self._asking:
            if self._token is None or time.time() >= self._use_until:
                self._token = self._newer(self._token)
            return self._token

    def _newer(self, held: BearerToken | None) -> BearerToken:
        asked_at = time.time()
        try:
            token = self._ask()
        except BrokerUnavailable:
            now = time.time()
            if held is None or held.expires_at is None or held.expires_at <= now:
                raise
            self._use_until = now + (1 - REFRESH_FRACTION) * (held.expires_at - now)
            return held
        life_seconds = 0.0 if token.expires_at is None else token.expires_at - asked_at
        self._use_until = asked_at + REFRESH_FRACTION * life_seconds
        return token

    def _ask(self) -> BearerToken:
        """Ask, repeatedly if that may help. Raises KafkaError, BrokerUnavailable."""
        for attempt in range(1, ATTEMPTS_COUNT + 1):
            try:
                return self._ask_once()
            except BrokerUnavailable:
                if attempt == ATTEMPTS_COUNT:
                    raise
            time.sleep(BACKOFF.seconds(attempt - 1))
        raise AssertionError("the last attempt returns or raises")

    def _ask_once(self) -> BearerToken:
        import httpx  # only where tokens are fetched

        form = {"grant_type": "client_credentials", **({} if self.scope is None else {"scope": self.scope})}
        trust = self.context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts no authority, and is made at once
        answer = bytearray()
        cut_off = _CutOff(ANSWER_SECONDS)
        hooks = {"trace": cut_off.notice}
        try:
            with (
                cut_off,
                httpx.Client(verify=trust, follow_redirects=False, timeout=ANSWER_SECONDS) as client,
                client.stream("POST", self.url, data=form, headers=self._headers(), extensions=hooks) as response,
            ):
                for piece in response.iter_bytes():
                    answer += piece
                    if len(answer) > ANSWER_MAX_BYTES:
                        raise self._refused(f"an answer larger than {ANSWER_MAX_BYTES} bytes")
            cut_off.check()
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            cut_off.check()
            reason = bounded(str(exc) or type(exc).__name__, REASON_MAX_COUNT)
            raise BrokerUnavailable(f"no token from {self.url}: {reason}") from exc
        return self._read(response.status_code, bytes(answer))

    def _headers(self) -> dict[str, str]:
        pair = self.client_id, self.client_secret
        credentials = ":".join(map(quote_plus, pair) if self.quotes_credentials else pair)
        encoded = base64.b64encode(credentials.encode()).decode()
        return {"Accept": "application/json", "Authorization": f"Basic {encoded}"}

    def _read(self, status: int, answer: bytes) -> BearerToken:
        """Read an answer; errors show no token. Raises KafkaError, BrokerUnavailable."""
        try:
            found: Any = json.loads(answer)
        except (ValueError, RecursionError):  # UnicodeDecodeError is one
            found = None
        fields: dict[str, Any] = found if isinstance(found, dict) else {}
        if status >= 500 or status == 429:
            raise BrokerUnavailable(f"no token from {self.url}: it answers {status}")
        if status not in (200, 201):
            said = " - ".join(str(fields[name]) for name in ("error", "error_description") if name in fields)
            raise self._refused(f"{status} {said}".strip())
        text = fields.get("access_token")
        if not isinstance(text, str) or not _TOKEN.fullmatch(text.strip()):
            raise self._refused("an answer without a token (access_token)")
        lasts_seconds = fields.get("expires_in")
        if isinstance(lasts_seconds, int | float) and 0 < lasts_seconds < LASTS_MAX_SECONDS:
            return BearerToken(text.strip(), time.time() + lasts_seconds)
        return BearerToken(text.strip(), expiry_of(text))

    def _refused(self, why: str) -> KafkaError:
        about = f"no token for '{self.client_id}' from {self.url}"
        return KafkaError(SASL_AUTHENTICATION_FAILED, f"{about}: it answers {bounded(escaped(why), REASON_MAX_COUNT)}")


TokenSource = TokenFile | TokenEndpoint | GivenToken


class _CutOff:
    """Ends the block's connections after a time, as httpx's timeouts are for one wait. `notice` is its hook `trace`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._sockets: list[socket.socket] = []
        self._is_over = False

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def notice(self, event: str, details: dict[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._sockets.append(details["return_value"].get_extra_info("socket"))

    def check(self) -> None:
        """Raise BrokerUnavailable if the time is over."""
        if self._is_over:
            raise BrokerUnavailable(f"no token: the answer did not arrive as a whole in {self._seconds:g} s")

    def _end(self) -> None:
        self._is_over = True
        for opened in self._sockets:
            with suppress(OSError):  # one that TLS has taken over, or that is closed
                socket.socket.shutdown(opened, socket.SHUT_RDWR)  # wakes the thread that waits for it


def expiry_of(text: str) -> float | None:
    """Read the expiry of a JSON Web Token, unchecked, in seconds since 1970; None if it has none."""
    try:
        payload = text.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"])
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError, binascii.Error):
        return None
