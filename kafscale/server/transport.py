"""What a connection needs of its socket: receive, receive into a buffer, and send a list of buffers without joining it.

`SocketTransport` is for TCP. `StreamTransport` works over any trio stream, as for tests over memory (and TLS).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs
import trio

from kafscale.store.base import Buffer

JOINED_MAX_BYTES = 32 << 10  # copying less costs less than a sendmsg with its list of buffers
SENDMSG_BUFFERS_MAX_COUNT = 1024  # IOV_MAX on Linux


class Transport(Protocol):
    """A byte stream to one client. Every method may raise trio.BrokenResourceError or trio.ClosedResourceError."""

    async def receive(self, max_bytes: int) -> bytes:
        """Whatever is there, at least one byte; empty at the end of the stream."""
        ...

    async def receive_into(self, buffer: memoryview) -> int:
        """As `receive`, into a buffer. Returns the number of bytes, 0 at the end of the stream."""
        ...

    async def send(self, buffers: Sequence[Buffer]) -> None:
        """Send all of them, in order."""
        ...

    async def aclose(self) -> None: ...


@attrs.define(eq=False)
class SocketTransport:
    """TCP, without a copy where that pays."""

    stream: trio.SocketStream

    async def receive(self, max_bytes: int) -> bytes:
        return bytes(await self.stream.receive_some(max_bytes))

    async def receive_into(self, buffer: memoryview) -> int:
        try:
            return await self.stream.socket.recv_into(buffer)
        except OSError as exc:
            raise trio.BrokenResourceError from exc

    async def send(self, buffers: Sequence[Buffer]) -> None:
        if sum(map(len, buffers)) <= JOINED_MAX_BYTES:
            await self.stream.send_all(b"".join(buffers))
            return
        left = [memoryview(buffer) for buffer in buffers if buffer]
        try:
            while left:
                sent = await self.stream.socket.sendmsg(left[:SENDMSG_BUFFERS_MAX_COUNT])
                left = _without_first(left, sent)
        except OSError as exc:
            raise trio.BrokenResourceError from exc

    async def aclose(self) -> None:
        await self.stream.aclose()


def _without_first(buffers: list[memoryview], count: int) -> list[memoryview]:
    """What is left after `count` bytes have been sent."""
    for index, buffer in enumerate(buffers):
        if count < len(buffer):
            return [buffer[count:], *buffers[index + 1 :]]
        count -= len(buffer)
    return []


@attrs.define(eq=False)
class StreamTransport:
    """Any trio stream."""

    stream: trio.abc.Stream

    async def receive(self, max_bytes: int) -> bytes:
        return bytes(await self.stream.receive_some(max_bytes))

    async def receive_into(self, buffer: memoryview) -> int:
        data = await self.stream.receive_some(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    async def send(self, buffers: Sequence[Buffer]) -> None:
        await self.stream.send_all(b"".join(buffers))

    async def aclose(self) -> None:
        await self.stream.aclose()
