"""Checks of each request and headers of each answer, as ASGI middleware.

A page of another site must not use the console: `Host` is an address or an allowed name (DNS rebinding), a request that
changes something comes from our own origin, and its form has the session's token (`pages.base`). The policy of content
allows scripts and styles from the console alone, so text of a record never runs.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

import attrs
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_MAX_BYTES = 2 << 20  # a form with a record of 1 MiB, percent-encoded in part
LENGTH_MAX_DIGITS = 12
TOO_LARGE = "The form is too large.\n"
SAFE_METHODS = ("GET", "HEAD")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@attrs.define(eq=False)
class Guard:
    app: ASGIApp
    allowed_hosts: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if not scope["path"].startswith("/static/"):
                    headers.setdefault("cache-control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        refused = self._refusal(scope["method"], headers)
        if refused is not None:
            await PlainTextResponse(f"{refused}\n", 403)(scope, receive, send_with_headers)
            return
        length = headers.get("content-length", "0")
        if len(length) > LENGTH_MAX_DIGITS or int(length) > BODY_MAX_BYTES:
            await PlainTextResponse(TOO_LARGE, 413)(scope, receive, send_with_headers)
            return
        await self.app(scope, _bounded(receive), send_with_headers)

    def _refusal(self, method: str, headers: Headers) -> str | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_allowed(hosts[0]):
            return "the Host of this request is not allowed: use an IP address, localhost, or a name of --allowed-host"
        if method in SAFE_METHODS:
            return None
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and origin not in (f"http://{hosts[0]}", f"https://{hosts[0]}"):
            return "this request comes from a page of another site"
        if site not in (None, "same-origin"):
            return "this request comes from a page of another site"
        return None

    def _is_allowed(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            ip_address(name)
        except ValueError:
            return name == "localhost" or name in self.allowed_hosts
        return True


class BodyTooLarge(Exception):
    """The body of a request exceeds BODY_MAX_BYTES."""


def _bounded(receive: Receive) -> Receive:
    received_bytes = 0

    async def receive_bounded() -> Message:
        nonlocal received_bytes
        message = await receive()
        received_bytes += len(message.get("body", b""))
        if received_bytes > BODY_MAX_BYTES:
            raise BodyTooLarge
        return message

    return receive_bounded
