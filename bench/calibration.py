"""Measures this machine without a broker: two processes exchange bytes, with a checksum, a copy and a synced write.

The figure of a load divided by that of an exchange with the same sizes, measured a moment before and after it, says
how fast the broker is, and hardly depends on the machine. Nothing of the broker is used here, so that it can't slow the
measure down together with the thing measured.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter

import attrs
from crc32c import crc32c

READ_BYTES = 256 << 10
FILE_BYTES = 64 << 20
WARM_UP_SHARE = 0.2


@attrs.frozen(kw_only=True)
class Exchange:
    """Requests and replies of one size each, with a number of requests sent ahead.

    A synced one writes what has arrived to a file, and syncs that, before it answers.
    """

    request_bytes: int
    reply_bytes: int
    in_flight: int
    is_synced: bool
    directory: Path | None = None


def exchanges_per_second(exchange: Exchange, seconds: float) -> float:
    """Run it for so long, a part of it to get warm."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(exchange, there), daemon=True)
    process.start()
    there.close()  # so that its end is seen here
    try:
        with socket.create_connection(("127.0.0.1", here.recv())) as connection:
            _prepare(connection)
            _exchange(connection, exchange, seconds * WARM_UP_SHARE)
            return _exchange(connection, exchange, seconds * (1 - WARM_UP_SHARE))
    finally:
        process.kill()
        process.join()


def _prepare(connection: socket.socket) -> None:
    """Use `cubic`, if it is there, whatever the machine has: `bbr` sends by timers, and 1 MiB takes a third longer."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(AttributeError, OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")


def _exchange(connection: socket.socket, exchange: Exchange, seconds: float) -> float:
    """The client: sends again what has been answered, and in the end waits for all.

    The clock is read once a turn: if time ran out between two looks at it, nothing would be sent and an answer waited
    for all the same.
    """
    request, reply = bytes(exchange.request_bytes), bytearray(max(READ_BYTES, exchange.reply_bytes))
    sent_count = answered_count = received_bytes = 0
    began = perf_counter()
    while (goes_on := perf_counter() - began < seconds) or answered_count < sent_count:
        due_count = exchange.in_flight - (sent_count - answered_count) if goes_on else 0
        if due_count:
            connection.sendall(request * due_count)
            sent_count += due_count
        count = connection.recv_into(reply)
        if not count:
            raise RuntimeError("the other process of the calibration loop has ended")
        received_bytes += count
        answered_count = received_bytes // exchange.reply_bytes
    return answered_count / (perf_counter() - began)


def _serve(exchange: Exchange, told: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        told.send(listener.getsockname()[1])
        connection, _ = listener.accept()
    _prepare(connection)
    with connection, TemporaryFile(dir=exchange.directory) as file:
        os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
        _answer(connection, exchange, file.fileno())


def _answer(connection: socket.socket, exchange: Exchange, descriptor: int) -> None:
    """The server: takes what has come, and answers as many requests as are whole by now."""
    buffer, kept = memoryview(bytearray(READ_BYTES)), memoryview(bytearray(READ_BYTES))
    reply = bytes(exchange.reply_bytes)
    received_bytes = answered_count = position = 0
    while count := connection.recv_into(buffer):
        received_bytes += count
        crc32c(buffer[:count])
        kept[:count] = buffer[:count]
        if exchange.is_synced:
            position = position + count if position + count <= FILE_BYTES - READ_BYTES else 0
            os.pwrite(descriptor, kept[:count], position)
        whole_count = received_bytes // exchange.request_bytes - answered_count
        if whole_count:
            if exchange.is_synced:
                os.fdatasync(descriptor)
            else:
                crc32c(reply)
            connection.sendall(reply * whole_count)
            answered_count += whole_count
