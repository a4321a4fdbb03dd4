"""A `Transport` over TLS: a non-blocking `ssl.SSLSocket` whose handshake is done, with trio waiting for the socket.

trio's own stream of TLS copies all bytes once more, through memory that OpenSSL reads from and writes to, and takes
turns of the event loop for it. What is different from TCP without TLS:

- One record, of at most 16 KiB, is read or written at a time. A read goes on while the socket has more, so that what
  was sent together is taken together.
- What OpenSSL has decrypted already does not make the socket readable.
- Sending takes CPU, about a millisecond for each MiB. Others run between pieces of it; what is sent of a file is read
  piece by piece, from the page cache.
- A read may have to wait until something can be written, and the other way round. In trio one task at a time waits for
  the same, so a second one waits for the first.
"""

from __future__ import annotations

import logging
import ssl
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import attrs
import trio

from kafscale.buffers import Buffer, pieces, size_of
from kafscale.server.kafka.transport import queued_bytes
from kafscale.store.file.open_files import FileRange, Sendable

logger = logging.getLogger(__name__)

RECORD_MAX_BYTES = 16 << 10  # RFC 8446, 5.1
RECEIVE_MAX_BYTES = 256 << 10  # of one read: a quarter of a millisecond
TURN_BYTES = 256 << 10  # sent without a turn of the event loop
PIECE_BYTES = 64 << 10  # that small buffers are joined to, and large ones and files are read in

T = TypeVar("T")


@attrs.define(eq=False, repr=False)
class TlsTransport:
    """Made by `of`."""

    socket: ssl.SSLSocket
    _readable: trio.Event | None = attrs.field(default=None, init=False)  # while a task waits until it is
    _writable: trio.Event | None = attrs.field(default=None, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)  # what said so is read, and the socket may be silent now
    _sent_bytes: int = attrs.field(default=0, init=False)  # in this turn of the event loop

    async def receive(self, max_bytes: int) -> bytes:
        """Whatever is there, of several records if there are; empty at the end of the stream."""
        data: bytes = await self._received(partial(self.socket.recv, min(max_bytes, RECORD_MAX_BYTES)))
        if not data or len(data) == max_bytes or not self._has_more():
            return data
        parts, left = [data], min(max_bytes, RECEIVE_MAX_BYTES) - len(data)
        while left and (data := self._more(partial(self.socket.recv, min(left, RECORD_MAX_BYTES)), b"")):
            parts.append(data)
            left -= len(data)
        return b"".join(parts)

    async def receive_into(self, buffer: memoryview) -> int:
        """Fill the buffer as far as there is something for it."""
        buffer = buffer[:RECEIVE_MAX_BYTES]
        filled = await self._received(partial(self.socket.recv_into, buffer))
        while 0 < filled < len(buffer) and (count := self._more(partial(self.socket.recv_into, buffer[filled:]), 0)):
            filled += count
        return filled

    def _more(self, receive: Callable[[], T], nothing: T) -> T:
        """Read what is there besides what was just read; the end, or an error, is kept for the next read to meet."""
        if not self._has_more():
            return nothing
        try:
            found = receive()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return nothing
        except OSError:
            found = nothing
        self._has_ended = not found
        return found

    def _has_more(self) -> bool:
        """Tell whether a read might have something now: decrypted already, or a part of a record at least."""
        return self.socket.pending() > 0 or queued_bytes(self.socket, termios.FIONREAD) > 0

    async def _received(self, receive: Callable[[], T]) -> T:
        if self._has_ended or self.socket.pending():
            await trio.lowlevel.checkpoint()
        else:
            await self._wait_readable()
        return await self._perform(receive)

    async def send(self, buffers: Sequence[Sendable]) -> None:
        """Takes no turn of the event loop if it is little, and the socket takes all of it at once."""
        await trio.lowlevel.checkpoint_if_cancelled()
        in_memory: list[Buffer] = []
        for buffer in buffers:
            if isinstance(buffer, FileRange):
                await self._send_memory(in_memory)
                in_memory = []
                for piece in _pieces_of(buffer):
                    await self._send_piece(piece)
            else:
                in_memory.append(buffer)
        await self._send_memory(in_memory)

    async def _send_memory(self, buffers: Sequence[Buffer]) -> None:
        if size_of(buffers) <= RECORD_MAX_BYTES:
            await self._send_piece(b"".join(buffers))
            return
        for piece in pieces(buffers, PIECE_BYTES):
            await self._send_piece(piece)

    async def _send_piece(self, piece: Buffer) -> None:
        while piece:
            sent = await self._perform(partial(self.socket.send, piece))
            piece = memoryview(piece)[sent:] if sent < len(piece) else b""
            self._sent_bytes += sent
            if self._sent_bytes >= TURN_BYTES:
                self._sent_bytes = 0
                await trio.lowlevel.checkpoint()

    async def _perform(self, operation: Callable[[], T]) -> T:
        """Do what may have to wait for the socket, either way: TLS has messages of its own."""
        while True:
            try:
                return operation()
            except ssl.SSLWantReadError:
                await self._wait_readable()
            except ssl.SSLWantWriteError:
                await self._wait_writable()
            except OSError as exc:
                raise trio.BrokenResourceError from exc

    async def _wait_readable(self) -> None:
        if self._readable is not None:
            await self._readable.wait()
            return
        self._readable = trio.Event()
        try:
            await trio.lowlevel.wait_readable(self.socket)
        finally:
            self._readable.set()
            self._readable = None

    async def _wait_writable(self) -> None:
        if self._writable is not None:
            await self._writable.wait()
            return
        self._writable = trio.Event()
        try:
            await trio.lowlevel.wait_writable(self.socket)
        finally:
            self._writable.set()
            self._writable = None

    def untaken_bytes(self) -> int:
        return queued_bytes(self.socket)

    async def aclose(self) -> None:
        """Say that nothing more comes (close_notify), if the socket takes that at once, and close it."""
        trio.lowlevel.notify_closing(self.socket)
        with suppress(OSError, ValueError):
            self.socket.unwrap()
        self.socket.close()
        await trio.lowlevel.checkpoint()


def _pieces_of(range: FileRange) -> Iterator[bytes]:
    """Read it from the page cache, where all of it was a moment ago."""
    position = 0
    while position < len(range):
        piece = range.read(position, min(PIECE_BYTES, len(range) - position))
        if not piece:
            logger.error("a file of the store became shorter while it was sent; closing the connection")
            raise trio.BrokenResourceError
        yield piece
        position += len(piece)
