"""Requests to the admin servers of the brokers. Imported with the first one, as httpx takes 0.1 s and 8 MB."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import httpx

from kafscale.config import Address
from kafscale.http.client import TrioTransport, fetch

SILENCE_MAX_SECONDS = 15.0  # between two parts of an answer
PAGE_MAX_BYTES = 256 << 20  # a page of metrics: 20,000 series of a family are some 2 MiB

Headers = Sequence[tuple[str, str]]


class NoAdminAnswer(Exception):
    """A broker gave no answer, or a part of one."""


@attrs.frozen
class AdminAnswer:
    status: int
    text: str


@attrs.frozen(eq=False, repr=False)
class BrokersClient:
    _transport: TrioTransport = attrs.field(factory=TrioTransport)

    async def get(
        self, address: Address, path: str, headers: Headers = (), *, silence_max_seconds: float = SILENCE_MAX_SECONDS
    ) -> AdminAnswer:
        """Return the answer to a GET. Raises NoAdminAnswer."""
        request = httpx.Request("GET", f"http://{address}{path}", headers=headers)
        try:
            status, body = await fetch(
                self._transport, request, max_bytes=PAGE_MAX_BYTES, timeout_seconds=silence_max_seconds
            )
        except httpx.TransportError as exc:
            raise _no_answer(exc) from exc
        return AdminAnswer(status, body.decode(errors="replace"))

    @asynccontextmanager
    async def posted(self, address: Address, target: str, headers: Headers) -> AsyncIterator[tuple[int, Lines]]:
        """Send a POST, and give the status and lines of the answer as they come. Raises NoAdminAnswer."""
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), SILENCE_MAX_SECONDS)
        url = f"http://{address}{target}"
        request = httpx.Request("POST", url, headers=headers, extensions={"timeout": timeouts})
        try:
            response = await self._transport.handle_async_request(request)
        except httpx.TransportError as exc:
            raise _no_answer(exc) from exc
        try:
            yield response.status_code, _lines(response)
        finally:
            await response.aclose()


Lines = AsyncIterator[str]


async def _lines(response: httpx.Response) -> Lines:
    assert isinstance(response.stream, httpx.AsyncByteStream)
    pending = b""
    try:
        async for part in response.stream:
            *whole, pending = (pending + part).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")
        if pending:
            yield pending.decode(errors="replace")
    except httpx.TransportError as exc:
        raise _no_answer(exc) from exc


def _no_answer(exc: httpx.TransportError) -> NoAdminAnswer:
    cannot_connect = isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout)
    return NoAdminAnswer("it can't be reached" if cannot_connect else "it does not answer")
