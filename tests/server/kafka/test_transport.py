"""Transports: the same bytes whatever the sizes, and partial sends continued."""

from __future__ import annotations

import os
import random
import socket
import struct
from pathlib import Path

import pytest
import trio
import trio.testing

from kafscale.buffers import IOV_MAX_COUNT
from kafscale.server.kafka.transport import (
    CLOSED_LOOK_SECONDS,
    JOINED_MAX_BYTES,
    SocketTransport,
    Transport,
    wait_closed_of,
)
from kafscale.store.file.open_files import FileRange, OpenFile, Sendable
from tests.devtools.fakes.stream_transport import StreamTransport


async def test_a_close_is_seen_behind_unread_bytes() -> None:
    """Long checks for connections that were closed held up everybody's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.sendall(b"more")
        with trio.move_on_after(3 * CLOSED_LOOK_SECONDS) as patience:
            await wait_closed_of(ours)
        assert patience.cancelled_caught
        theirs.close()
        with trio.fail_after(10):
            await wait_closed_of(ours)
        assert ours.recv(10) == b"more"


async def _socket_pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Of TCP: left and right."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        right = await trio.testing.open_stream_to_socket_listener(listener)
        return await listener.accept(), right


BUFFERS = {
    "none": [],
    "empty": [b"", b""],
    "small": [b"a", memoryview(b"bc"), bytearray(b"def")],
    "large": [b"head", bytes(range(256)) * 4096, memoryview(b"tail" * 100_000)],
    "many": [bytes([number % 256]) * 50 for number in range(3000)],
}


@pytest.mark.parametrize("name", BUFFERS)
async def test_sent_bytes_arrive_whole_and_in_order(name: str) -> None:
    buffers = BUFFERS[name]
    expected = b"".join(buffers)
    ours, theirs = await _socket_pair()
    received = bytearray()

    async def receive() -> None:
        async with theirs:
            async for data in theirs:
                received.extend(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        transport = SocketTransport.of(ours)
        await transport.send(buffers)
        await transport.aclose()
    assert received == expected


@pytest.mark.parametrize("kind", ["socket", "stream"])
async def test_ranges_of_files_are_sent_between_buffers(kind: str, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3_000_000)
    (tmp_path / "object").write_bytes(data)
    file = OpenFile(os.open(tmp_path / "object", os.O_RDONLY), len(data))
    buffers: list[Sendable] = [b"head", FileRange(file, 5, 2_000_000), b"between", FileRange(file, 7, 8), b"end"]
    expected = b"head" + data[5:2_000_000] + b"between" + data[7:8] + b"end"
    ours, theirs = await _socket_pair()
    async with ours, theirs:
        transport: Transport = SocketTransport.of(ours) if kind == "socket" else StreamTransport(ours)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.send, buffers)
            received = bytearray()
            while len(received) < len(expected):
                received += await theirs.receive_some(100_000)
        assert received == expected
        await transport.aclose()
    file.release()


async def test_a_file_that_became_shorter_breaks_the_connection(tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(b"0123456789")
    file = OpenFile(os.open(tmp_path / "object", os.O_RDONLY), 20)
    ours, theirs = await _socket_pair()
    async with ours, theirs:
        transport = SocketTransport.of(ours)
        with pytest.raises(trio.BrokenResourceError):
            await transport.send([b"head", FileRange(file, 0, 20)])
        await transport.aclose()
    file.release()


def test_the_large_case_takes_the_path_without_a_copy() -> None:
    assert sum(map(len, BUFFERS["large"])) > JOINED_MAX_BYTES
    assert sum(map(len, BUFFERS["many"])) > JOINED_MAX_BYTES


@pytest.mark.parametrize("kind", ["socket", "stream"])
async def test_receives_into_a_buffer(kind: str) -> None:
    ours, theirs = await _socket_pair()
    transport: Transport = SocketTransport.of(theirs) if kind == "socket" else StreamTransport(theirs)
    buffer = bytearray(10)
    async with ours, theirs:
        await ours.send_all(b"hello")
        assert await transport.receive_into(memoryview(buffer)[2:]) == 5
        assert bytes(buffer) == b"\0\0hello\0\0\0"
        await ours.send_eof()
        assert await transport.receive_into(memoryview(buffer)) == 0
        await transport.aclose()


@pytest.mark.parametrize("kind", ["socket", "stream"])
async def test_a_peer_that_is_gone_is_a_broken_resource(kind: str) -> None:
    ours, theirs = await _socket_pair()
    transport: Transport = SocketTransport.of(theirs) if kind == "socket" else StreamTransport(theirs)
    await ours.aclose()
    with pytest.raises(trio.BrokenResourceError):
        await transport.send([b"x" * JOINED_MAX_BYTES * 400, b"y"])
    await transport.aclose()


async def test_very_many_buffers_let_others_run_meanwhile() -> None:
    """Also where the peer, or its socket, takes them all at once."""
    ours, theirs = await _socket_pair()
    transport = SocketTransport.of(ours)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with theirs, trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await transport.send([b"small"] * 20 * IOV_MAX_COUNT)
        assert turns >= 15
        nursery.cancel_scope.cancel()
    await transport.aclose()


@pytest.mark.parametrize("how", ["end", "reset"])
async def test_the_end_is_noticed_and_nothing_is_taken(how: str) -> None:
    ours, theirs = await _socket_pair()
    transport = SocketTransport.of(theirs)
    async with ours:
        await ours.send_all(b"ab")
        assert not await transport.wait_end()
        assert await transport.receive(10) == b"ab"
        if how == "reset":
            ours.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await ours.aclose()
        assert await transport.wait_end()
        await transport.aclose()
