"""Metrics of the admin server of a broker."""

from __future__ import annotations

from http import HTTPStatus

import httpx

from kafscale.config import Address
from kafscale.errors import BrokerUnavailable
from kafscale.http.client import TrioTransport, fetch

TIMEOUT_SECONDS = 5.0
PAGE_MAX_BYTES = 16 << 20


async def read_metrics(admin: Address, token: str | None) -> dict[str, float]:
    """Return the series without labels, by name. Raises BrokerUnavailable."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    request = httpx.Request("GET", f"http://{admin}/metrics", headers=headers)
    try:
        async with TrioTransport() as transport:
            status, page = await fetch(transport, request, max_bytes=PAGE_MAX_BYTES, timeout_seconds=TIMEOUT_SECONDS)
    except httpx.TransportError as exc:
        raise BrokerUnavailable(f"no metrics of {admin}: {exc}") from exc
    if status != HTTPStatus.OK:
        raise BrokerUnavailable(f"no metrics of {admin}: it answered {status}; check --admin and --admin-token-file")
    return dict(_series(page.decode(errors="replace")))


def _series(page: str) -> list[tuple[str, float]]:
    found = []
    for line in page.splitlines():
        name, _, value = line.partition(" ")
        if not line.startswith("#") and "{" not in name:
            try:
                found.append((name, float(value)))
            except ValueError:
                continue
    return found
