"""A `Transport` over TLS: a `SecuredSocket` after its handshake, with trio waiting for its socket.

One system call receives many records. Received or decrypted bytes don't make the socket readable. Sending takes about a
millisecond of CPU per MiB, so others run between pieces. Reading may make OpenSSL write: in trio one task at a time
waits until a socket is writable, so a second one waits for the first.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import attrs
import trio

from kafscale.buffers import Buffer, pieces, size_of
from kafscale.server.kafka.transport import queued_bytes, wait_closed_of, wait_end_of
from kafscale.server.tls.handshakes import FEED_MAX_BYTES, SecuredSocket
from kafscale.store.file.open_files import FileRange, Sendable

logger = logging.getLogger(__name__)

RECORD_MAX_BYTES = 16 << 10  # RFC 8446, 5.1
RECEIVE_MAX_BYTES = 256 << 10  # of one read: a quarter of a millisecond
FEEDS_MAX_COUNT = 5  # of one read, which fill it but for the headers of records
# Taken without a byte of data: more than a record. The 2,400 new keys that so much may ask for take 0.1 s of CPU.
WITHOUT_DATA_MAX_BYTES = 48 << 10
TURN_BYTES = 256 << 10  # sent without a turn of the event loop
GATHERING_SECONDS = 0.002  # for the rest of a frame; a peer may wait for a confirmation before it sends more (Nagle)
PIECE_BYTES = 64 << 10  # that small buffers are joined to, and large ones and files are read in


@attrs.define(eq=False, repr=False)
class TlsTransport:
    secured: SecuredSocket
    _writable: trio.Event | None = attrs.field(default=None, init=False)  # while a task waits until it is
    _has_ended: bool = attrs.field(default=False, init=False)
    _failure: OSError | None = attrs.field(default=None, init=False)  # for the next read to meet
    _without_data_bytes: int = attrs.field(default=0, init=False)  # taken from the socket since it last brought data
    _sent_bytes: int = attrs.field(default=0, init=False)  # in this turn of the event loop
    _low_water_bytes: int = attrs.field(default=1, init=False)  # what makes the socket readable

    async def receive(self, max_bytes: int) -> bytes:
        """Return available bytes, of several records; empty at the end of the stream."""
        parts: list[bytes] = []
        wanted = min(max_bytes, RECEIVE_MAX_BYTES)
        decrypt = self.secured.tls.read

        def read(filled: int) -> int:
            part = decrypt(min(wanted - filled, RECORD_MAX_BYTES))
            parts.append(part)
            return len(part)

        await self._receive(wanted, read)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive what is there, after a moment in which bytes gather: clients send record by record."""
        wanted = min(len(buffer), RECEIVE_MAX_BYTES)
        decrypt = self.secured.tls.read

        def read(filled: int) -> int:
            return decrypt(wanted - filled, buffer[filled:wanted])  # type: ignore[return-value] # a count, with a buffer

        # A part of the next record may be here already.
        least_bytes = min(len(buffer) - RECORD_MAX_BYTES, FEED_MAX_BYTES)
        return await self._receive(wanted, read, least_bytes)

    async def wait_end(self) -> bool:
        """Wait as any transport; a peer's close_notify is data, and not the end."""
        if self.secured.is_fed or self._has_ended or self._failure:
            await trio.lowlevel.checkpoint()
            return self._has_ended or self._failure is not None
        self._set_low_water(1)
        return await wait_end_of(self.secured.tcp)

    async def wait_closed(self) -> None:
        await wait_closed_of(self.secured.tcp)

    async def _receive(self, wanted: int, read: Callable[[int], int], least_bytes: int = 1) -> int:
        if self.secured.is_fed or self._has_ended or self._failure:
            await trio.lowlevel.checkpoint()
        else:
            await self._wait_readable(least_bytes)
        while not self._has_ended:
            if self._failure is not None:
                raise trio.BrokenResourceError from self._failure
            to_flush_bytes = self.secured.to_flush_bytes
            filled = self._decrypt(wanted, read)
            if self.secured.to_flush_bytes > to_flush_bytes and not self._failure:
                await self._flush()  # what was asked for beside the data: who asks for much of it has to take it
            if filled:
                return filled
            if not (self._has_ended or self._failure):
                await self._wait_readable(least_bytes)
        return 0

    async def _wait_readable(self, least_bytes: int) -> None:
        """Wait until the socket has `least_bytes` or has ended; after a moment, for any byte."""
        if least_bytes > 1:
            self._set_low_water(least_bytes)
            with trio.move_on_after(GATHERING_SECONDS):
                await trio.lowlevel.wait_readable(self.secured.tcp)
                return
        self._set_low_water(1)
        await trio.lowlevel.wait_readable(self.secured.tcp)

    def _set_low_water(self, count: int) -> None:
        if count != self._low_water_bytes:
            self.secured.tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
            self._low_water_bytes = count

    def _decrypt(self, wanted: int, read: Callable[[int], int]) -> int:
        """Read up to `wanted` bytes. An end or error behind them is kept for the next read."""
        filled = self._read_fed(0, wanted, read) if self.secured.is_fed else 0
        feeds_left = FEEDS_MAX_COUNT
        while filled < wanted and feeds_left and not (self._has_ended or self._failure):
            try:
                fed_bytes = self.secured.feed()
            except BlockingIOError:
                break
            except OSError as exc:
                self._failure = exc
                break
            feeds_left = feeds_left - 1 if fed_bytes == FEED_MAX_BYTES else 0
            before, filled = filled, self._read_fed(filled, wanted, read)
            self._without_data_bytes = 0 if filled > before else self._without_data_bytes + fed_bytes
            if self._without_data_bytes > WITHOUT_DATA_MAX_BYTES and not self._failure:
                self._failure = ssl.SSLError("it sends messages of TLS that bring no data")
        return filled

    def _read_fed(self, filled: int, wanted: int, read: Callable[[int], int]) -> int:
        """Read on in the bytes that the socket has given."""
        try:
            while filled < wanted and (count := read(filled)):
                filled += count
            self._has_ended = filled < wanted
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLEOFError:
            self._has_ended = True
        except OSError as exc:
            self._failure = exc
        return filled

    async def send(self, buffers: Sequence[Sendable]) -> None:
        """Send without a turn of the event loop if it is little, and the socket takes it at once."""
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
        if not piece:
            return
        try:
            self.secured.tls.write(piece)  # all of it, as it goes to memory
        except OSError as exc:
            raise trio.BrokenResourceError from exc
        await self._flush()
        self._sent_bytes += len(piece)
        if self._sent_bytes >= TURN_BYTES:
            self._sent_bytes = 0
            await trio.lowlevel.checkpoint()

    async def _flush(self) -> None:
        try:
            while not self.secured.flush():
                await self._wait_writable()
        except OSError as exc:
            raise trio.BrokenResourceError from exc

    async def _wait_writable(self) -> None:
        if self._writable is not None:
            await self._writable.wait()
            return
        self._writable = trio.Event()
        try:
            await trio.lowlevel.wait_writable(self.secured.tcp)
        finally:
            self._writable.set()
            self._writable = None

    def untaken_bytes(self) -> int:
        return queued_bytes(self.secured.tcp) + self.secured.to_flush_bytes

    async def aclose(self) -> None:
        """Send close_notify if the socket takes it at once, and close it."""
        trio.lowlevel.notify_closing(self.secured.tcp)
        with suppress(OSError, ValueError):
            self.secured.tls.unwrap()
        with suppress(OSError):
            self.secured.flush()
        self.secured.tcp.close()
        await trio.lowlevel.checkpoint()


def _pieces_of(range: FileRange) -> Iterator[bytes]:
    position = 0
    while position < len(range):
        piece = range.read(position, min(PIECE_BYTES, len(range) - position))
        if not piece:
            logger.error("a file of the store became shorter while it was sent; closing the connection")
            raise trio.BrokenResourceError
        yield piece
        position += len(piece)
