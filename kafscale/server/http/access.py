"""Access control of the admin server. Probes are answered to anyone.

With `--admin-token-file`, any other request needs the token. Without one, a server that listens beyond the loopback
changes nothing, and requests from web pages are refused: a browser names the page's site in `Origin`, and after DNS
rebinding a foreign name in `Host`. Other programs send no `Origin`, and use an IP address or one of the broker's names.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Collection, Iterable, Sequence
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import attrs
import h11

from kafscale.config import Settings
from kafscale.server.tls.contexts import Tls, read_secret

LOCAL_NAME = "localhost"
logger = logging.getLogger(__name__)
TOKEN_MAX_BYTES = 4096
_SCHEME = "bearer "


@attrs.define(eq=False, repr=False)
class AdminToken:
    """The token of `--admin-token-file` (RFC 6750), read again when the file changes."""

    _token: bytes
    paths: Sequence[Path]
    what: str = "the token of --admin-token-file"

    @classmethod
    def open(cls, path: Path) -> AdminToken:
        return cls(_read_token(path), [path])

    def load(self) -> None:
        """Read the file again. Raises StartupError, without effect."""
        self._token = _read_token(self.paths[0])

    def is_in(self, request: h11.Request) -> bool:
        """Tell, in constant time, whether a request has the token."""
        given = _values(request, b"authorization")
        if len(given) != 1 or not given[0].lower().startswith(_SCHEME):
            return False
        return hmac.compare_digest(given[0][len(_SCHEME) :].strip().encode("latin-1"), self._token)


def _read_token(path: Path) -> bytes:
    return read_secret(path, "--admin-token-file", max_bytes=TOKEN_MAX_BYTES).encode()


@attrs.frozen(kw_only=True, eq=False, repr=False)
class AdminAccess:
    """Access rules. `own_names` are the broker's host names; `is_exposed`: other machines reach the server."""

    own_names: Collection[str] = ()
    token: AdminToken | None = None
    tls: Tls | None = None
    is_exposed: bool = False

    @classmethod
    def of(cls, settings: Settings, token: AdminToken | None, tls: Tls | None) -> AdminAccess:
        """Return the access rules of a broker, and warn if its server is exposed without a token."""
        access = cls(
            own_names=own_names(settings),
            token=token,
            tls=tls,
            is_exposed=not _is_loopback(settings.admin_listen.host),
        )
        if access.refused_change is not None:
            logger.warning(
                "the admin server %s can be reached from other machines, and --admin-token-file is not set: anyone who "
                "reaches it can read /metrics, and /flush is refused",
                settings.admin_listen,
            )
        return access

    def is_known(self, request: h11.Request) -> bool:
        """Tell whether a request may have more than a probe."""
        return self.token is None or self.token.is_in(request)

    def refusal(self, request: h11.Request) -> str | None:
        """Return why a known request may only probe, or None. The token is enough: no web page knows it."""
        return refusal(request, self.own_names) if self.token is None else None

    @property
    def refused_change(self) -> str | None:
        if self.token is not None or not self.is_exposed:
            return None
        return (
            "this admin server can be reached from other machines and has no --admin-token-file: set one, or have "
            "--admin-listen on 127.0.0.1"
        )


def own_names(settings: Settings) -> set[str]:
    listeners = (*settings.listeners, *settings.advertised_listeners)
    return {name.lower() for name in (settings.admin_listen.host, *(listener.host for listener in listeners))}


def refusal(request: h11.Request, names: Iterable[str]) -> str | None:
    hosts = _values(request, b"host")
    host = _host_of(f"//{hosts[0]}") if len(hosts) == 1 else None
    if host is None or not (_is_address(host) or host in {LOCAL_NAME, *names}):
        return (
            "the Host of this request is none of this broker's: reach it by an IP address, localhost, or a name that "
            "is in --admin-listen, --listen or --advertised-listener, or set --admin-token-file and bring the token"
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


def _is_loopback(host: str) -> bool:
    return host == LOCAL_NAME or (_is_address(host) and ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
