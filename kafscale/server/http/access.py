"""Whether a request that changes something may come from where it says: browsers send what any page tells them to.

A page can have a browser POST to an address that only its user reaches. The browser then says in `Origin` where the
page is from, which is refused unless it is this server. A name that the page's owner points at 127.0.0.1 (DNS
rebinding) makes both the same; but it is in `Host`, and no such name is one of the broker's own. Programs that are no
browser send no `Origin`, and reach the server by an IP address or a name of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

import h11

LOCAL_NAME = "localhost"


def refusal(request: h11.Request, own_names: Iterable[str]) -> str | None:
    """Why the request is refused, for its sender; None if it may be done."""
    hosts = _values(request, b"host")
    host = _host_of(f"//{hosts[0]}") if len(hosts) == 1 else None
    if host is None or not (_is_address(host) or host in {LOCAL_NAME, *own_names}):
        return (
            "the Host of this request is none of this broker's: reach it by an IP address, localhost, or a name that "
            "is in --admin-listen, --listen or --advertised-listener"
        )
    origins = _values(request, b"origin")
    if origins and [origin.lower() for origin in origins] != [f"http://{hosts[0].lower()}"]:
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
