"""Requests to the admin servers of brokers on this machine: HTTP/1.1 on h11 over trio, a connection for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import h11
import trio

from kafscale.config import Address

RECEIVE_BYTES = 64 << 10
SILENCE_MAX_SECONDS = 15.0  # between two parts of an answer
BODY_MAX_BYTES = 256 << 20  # a page of metrics: 20,000 series of a family are some 2 MiB

Headers = Sequence[tuple[str, str]]


class NoAnswer(Exception):
    """The broker was not there, or said nothing, or half of it."""


@attrs.frozen(eq=False, repr=False)
class Answer:
    """An answer whose head has come; `parts` and `read` are for its body."""

    status: int
    _connection: h11.Connection
    _stream: trio.SocketStream
    _silence_max_seconds: float

    async def parts(self) -> AsyncIterator[bytes]:
        """Give the body as it comes. Raises NoAnswer."""
        while not isinstance(
            event := await _next_event(self._connection, self._stream, self._silence_max_seconds), h11.EndOfMessage
        ):
            if isinstance(event, h11.Data):
                yield bytes(event.data)

    async def read(self) -> str:
        """Return the whole body. Raises NoAnswer."""
        body = bytearray()
        async for part in self.parts():
            body += part
            if len(body) > BODY_MAX_BYTES:
                raise NoAnswer(f"it answers with more than {BODY_MAX_BYTES} bytes")
        return body.decode(errors="replace")


@asynccontextmanager
async def asked(
    address: Address,
    method: str,
    target: str,
    headers: Headers = (),
    *,
    silence_max_seconds: float = SILENCE_MAX_SECONDS,
) -> AsyncIterator[Answer]:
    """Ask, and give the answer once its head is there. Raises NoAnswer."""
    try:
        with trio.fail_after(silence_max_seconds):
            stream = await trio.open_tcp_stream(address.host, address.port)
    except (OSError, trio.TooSlowError) as exc:
        raise NoAnswer("it can't be reached") from exc
    async with stream:
        connection = h11.Connection(h11.CLIENT)
        request = h11.Request(method=method, target=target, headers=[("host", str(address)), *headers])
        data = (connection.send(request) or b"") + (connection.send(h11.EndOfMessage()) or b"")
        try:
            with trio.fail_after(silence_max_seconds):
                await stream.send_all(data)
        except (trio.BrokenResourceError, trio.TooSlowError) as exc:
            raise NoAnswer("it does not answer") from exc
        event = await _next_event(connection, stream, silence_max_seconds)
        assert isinstance(event, h11.Response)
        yield Answer(event.status_code, connection, stream, silence_max_seconds)


async def _next_event(connection: h11.Connection, stream: trio.SocketStream, silence_max_seconds: float) -> h11.Event:
    try:
        while (event := connection.next_event()) is h11.NEED_DATA:
            with trio.fail_after(silence_max_seconds):
                connection.receive_data(bytes(await stream.receive_some(RECEIVE_BYTES)))
    except (h11.RemoteProtocolError, trio.BrokenResourceError, trio.TooSlowError) as exc:
        raise NoAnswer("it does not answer") from exc
    if not isinstance(event, h11.Response | h11.Data | h11.EndOfMessage):
        raise NoAnswer("its answer ended")
    return event
