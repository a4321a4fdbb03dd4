"""Who may ask the admin server, and for what: by a token, and from where.

With `--admin-token-file`, who asks for more than a probe brings the token. Browsers send what any page tells them to,
so a request that changes something is also asked where it comes from.

A page can have a browser POST to an address that only its user reaches. The browser then says in `Origin` where the
page is from, which is refused unless it is this server. A name that the page's owner points at 127.0.0.1 (DNS
rebinding) makes both the same; but it is in `Host`, and no such name is one of the broker's own. Programs that are no
browser send no `Origin`, and reach the server by an IP address or a name of its own.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable, Sequence
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import attrs
import h11

from kafscale.config import Settings
from kafscale.server.tls.contexts import Tls, read_secret

LOCAL_NAME = "localhost"
TOKEN_MAX_BYTES = 4096
_SCHEME = "bearer "


@attrs.define(eq=False, repr=False)
class AdminToken:
    """The token of `--admin-token-file` (RFC 6750), which is read again when the file changes."""

    _token: bytes
    paths: Sequence[Path]
    what: str = "the token of --admin-token-file"

    @classmethod
    def open(cls, path: Path) -> AdminToken:
        """Read the file. Raises StartupError."""
        return cls(_read_token(path), [path])

    def load(self) -> None:
        """Read the file again. Raises StartupError, and leaves what was there."""
        self._token = _read_token(self.paths[0])

    def is_in(self, request: h11.Request) -> bool:
        """Tell whether a request brings it, in a time that does not tell how much of it was right."""
        given = _values(request, b"authorization")
        if len(given) != 1 or not given[0].lower().startswith(_SCHEME):
            return False
        return hmac.compare_digest(given[0][len(_SCHEME) :].strip().encode("latin-1"), self._token)


def _read_token(path: Path) -> bytes:
    return read_secret(path, "--admin-token-file", max_bytes=TOKEN_MAX_BYTES).encode()


@attrs.frozen(kw_only=True, eq=False, repr=False)
class AdminAccess:
    """`own_names` are the names by which the broker is reached, as far as its settings tell."""

    own_names: Collection[str] = ()
    token: AdminToken | None = None
    tls: Tls | None = None

    def is_known(self, request: h11.Request) -> bool:
        """Tell whether a request may have more than a probe has."""
        return self.token is None or self.token.is_in(request)


def own_names(settings: Settings) -> set[str]:
    """Return the names by which the broker may be reached."""
    listeners = (*settings.listeners, *settings.advertised_listeners)
    return {name.lower() for name in (settings.admin_listen.host, *(each.host for each in listeners))}


def refusal(request: h11.Request, names: Iterable[str]) -> str | None:
    """Why the request is refused, for its sender; None if it may be done."""
    hosts = _values(request, b"host")
    host = _host_of(f"//{hosts[0]}") if len(hosts) == 1 else None
    if host is None or not (_is_address(host) or host in {LOCAL_NAME, *names}):
        return (
            "the Host of this request is none of this broker's: reach it by an IP address, localhost, or a name that "
            "is in --admin-listen, --listen or --advertised-listener"
        )
    origins = _values(request, b"origin")
    ours = [[f"{scheme}://{hosts[0].lower()}"] for scheme in ("http", "https")]
    if origins and [origin.lower() for origin in origins] not in ours:
        return "the Origin of this request is another site"
    return None


def _values(request: h11.Request, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in request.headers if key == name]


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
