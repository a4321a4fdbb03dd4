"""Metrics of the admin server of a broker."""

from __future__ import annotations

import httpx

from kafscale.config import Address
from kafscale.errors import BrokerUnavailable

TIMEOUT_SECONDS = 5.0
PAGE_MAX_BYTES = 16 << 20


async def read_metrics(admin: Address, token: str | None) -> dict[str, float]:
    """Return the series without labels, by name. Raises BrokerUnavailable."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    page = bytearray()
    try:
        async with (
            httpx.AsyncClient(timeout=TIMEOUT_SECONDS, trust_env=False) as client,
            client.stream("GET", f"http://{admin}/metrics", headers=headers) as response,
        ):
            response.raise_for_status()
            async for part in response.aiter_bytes():
                page += part
                if len(page) > PAGE_MAX_BYTES:
                    break
    except httpx.HTTPError as exc:
        raise BrokerUnavailable(f"no metrics of {admin}: {exc}") from exc
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
