"""Transports of connections, which receive into buffers, and send buffers and ranges of files unjoined."""

from __future__ import annotations

import fcntl
import logging
import os
import select
import socket
import struct
import termios
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import attrs
import trio

from kafscale.buffers import IOV_MAX_COUNT, Buffer, drop_first, size_of
from kafscale.store.file.open_files import FileRange, Sendable

logger = logging.getLogger(__name__)

T = TypeVar("T")

CLOSED_LOOK_SECONDS = 0.25
JOINED_MAX_BYTES = 32 << 10  # copying less costs less than a sendmsg with its list of buffers


class Transport(Protocol):
    """A byte stream to one client. Every method may raise trio.BrokenResourceError or trio.ClosedResourceError."""

    async def receive(self, max_bytes: int) -> bytes:
        """Return available bytes; empty at the end of the stream."""
        ...

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive into a buffer, and return the number of bytes; 0 at the end of the stream.

        The peer must send at least the buffer's size before it waits for an answer.
        """
        ...

    async def wait_end(self) -> bool:
        """Wait until there is something to receive, and tell whether that is the end. Receives nothing."""
        ...

    async def wait_closed(self) -> None:
        """Wait until the peer has closed its side, whatever it sent before. Receives nothing."""
        ...

    async def send(self, buffers: Sequence[Sendable]) -> None: ...

    def untaken_bytes(self) -> int:
        """Return the sent bytes that the peer has not confirmed."""
        ...

    async def aclose(self) -> None: ...


def take_socket(stream: trio.SocketStream) -> socket.socket:
    taken = socket.socket(fileno=stream.socket.detach())
    taken.setblocking(False)
    # trio has a socket take only 16 KiB more than it can send at once. Large replies would go in pieces, each with a
    # turn of the event loop, and the last one behind MSG_MORE would wait for 200 ms.
    taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 0)
    return taken


async def wait_end_of(taken: socket.socket) -> bool:
    while True:
        await trio.lowlevel.wait_readable(taken)
        try:
            return not taken.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            continue
        except OSError:
            return True


async def wait_closed_of(taken: socket.socket) -> None:
    """Wait until the peer has closed its side. Only polling the kernel shows an end behind received data."""
    ends = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR  # the first is Linux's
    polling = select.poll()
    polling.register(taken, ends)
    while not polling.poll(0):  # noqa: ASYNC110 - no event is set by the kernel
        await trio.sleep(CLOSED_LOOK_SECONDS)


def queued_bytes(queue: socket.socket) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(queue, termios.TIOCOUTQ, bytes(4)))
    return int(count)


@attrs.define(eq=False, repr=False)
class SocketTransport:
    """TCP, without a copy where that pays.

    trio's own socket takes a turn of the event loop for each operation, and each receive begins with a call that mostly
    fails.
    """

    socket: socket.socket

    @classmethod
    def of(cls, stream: trio.SocketStream) -> SocketTransport:
        return cls(take_socket(stream))

    async def receive(self, max_bytes: int) -> bytes:
        return await self._received(partial(self.socket.recv, max_bytes))

    async def receive_into(self, buffer: memoryview) -> int:
        return await self._received(partial(self.socket.recv_into, buffer))

    async def wait_end(self) -> bool:
        return await wait_end_of(self.socket)

    async def wait_closed(self) -> None:
        await wait_closed_of(self.socket)

    async def _received(self, receive: Callable[[], T]) -> T:
        while True:
            await trio.lowlevel.wait_readable(self.socket)
            try:
                return receive()
            except BlockingIOError:
                continue
            except OSError as exc:
                raise trio.BrokenResourceError from exc

    async def send(self, buffers: Sequence[Sendable]) -> None:
        """Send without a turn of the event loop if the socket takes all at once."""
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            in_memory: list[Buffer] = []
            for buffer in buffers:
                if isinstance(buffer, FileRange):
                    await self._send_memory(in_memory, socket.MSG_MORE)
                    await self._send_file(buffer)
                    in_memory = []
                else:
                    in_memory.append(buffer)
            await self._send_memory(in_memory)
        except OSError as exc:
            raise trio.BrokenResourceError from exc

    async def _send_memory(self, buffers: Sequence[Buffer], flags: int = 0) -> None:
        if size_of(buffers) <= JOINED_MAX_BYTES:
            buffers = [b"".join(buffers)]
        for start in range(0, len(buffers), IOV_MAX_COUNT):
            end = start + IOV_MAX_COUNT
            if end >= len(buffers):
                await self._send_some(buffers[start:], flags)
            else:
                await self._send_some(buffers[start:end], socket.MSG_MORE)
                await trio.lowlevel.checkpoint()  # long lists take a while, also where the peer takes them at once

    async def _send_some(self, buffers: Sequence[Buffer], flags: int) -> None:
        left = [buffer for buffer in buffers if buffer]
        while left:
            try:
                sent = self.socket.sendmsg(left, (), flags)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.socket)
            else:
                drop_first(left, sent)

    async def _send_file(self, range: FileRange) -> None:
        """Let the kernel send a range from the page cache: 100 us a MiB, instead of 500 for reading and sending."""
        position = range.start
        while position < range.end:
            try:
                sent = os.sendfile(self.socket.fileno(), range.file.descriptor, position, range.end - position)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.socket)
                continue
            if not sent:
                logger.error("a file of the store became shorter while it was sent; closing the connection")
                raise trio.BrokenResourceError
            position += sent

    def untaken_bytes(self) -> int:
        return queued_bytes(self.socket)

    async def aclose(self) -> None:
        trio.lowlevel.notify_closing(self.socket)
        self.socket.close()
        await trio.lowlevel.checkpoint()
