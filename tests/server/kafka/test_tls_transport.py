"""The transport over TLS: the same bytes as over TCP, and what only TLS has."""

from __future__ import annotations

import os
import random
import shutil
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest
import trio
import trio.testing

from kafscale.server.kafka.tls_transport import PIECE_BYTES, TURN_BYTES, TlsTransport
from kafscale.server.kafka.transport import take_socket
from kafscale.store.file.open_files import FileRange, OpenFile, Sendable
from kafscale.testing.certificates import Authority, make_authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("certificates"))


Accept = Callable[[], Awaitable[TlsTransport]]


@asynccontextmanager
async def accepted(authority: Authority, *, buffer_bytes: int = 0) -> AsyncIterator[tuple[tuple[str, int], Accept]]:
    """An address, and what accepts a connection there and does the handshake; those are closed at the end."""
    context = authority.issue("broker").server_context()
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    transports: list[TlsTransport] = []

    async def accept() -> TlsTransport:
        taken = take_socket(await listener.accept())
        if buffer_bytes:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        secured = context.wrap_socket(taken, server_side=True, do_handshake_on_connect=False)
        while True:
            try:
                secured.do_handshake()
                break
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(secured)
        transports.append(TlsTransport(secured))
        return transports[-1]

    async with listener:
        try:
            yield listener.socket.getsockname(), accept
        finally:
            for transport in transports:
                await trio.aclose_forcefully(transport)


@asynccontextmanager
async def connected(
    authority: Authority, *, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, buffer_bytes: int = 0
) -> AsyncIterator[tuple[TlsTransport, trio.SSLStream[trio.SocketStream]]]:
    """Ours, and trio's stream of TLS at the other end, both after the handshake."""
    async with accepted(authority, buffer_bytes=buffer_bytes) as (address, accept):
        context = authority.issue("client").client_context(authority.ca_file)
        context.maximum_version = version
        theirs = trio.SSLStream(await trio.open_tcp_stream(*address), context, server_hostname="localhost")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(theirs.do_handshake)
            ours = await accept()
        try:
            yield ours, theirs
        finally:
            await trio.aclose_forcefully(theirs)


async def receive_exactly(stream: trio.abc.ReceiveStream, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        data = await stream.receive_some(100_000)
        assert data
        received += data
    return bytes(received)


BUFFERS = {
    "empty": [b"", b""],
    "small": [b"a", memoryview(b"bc"), bytearray(b"def")],
    "large": [b"head", bytes(range(256)) * 4096, memoryview(b"tail" * 100_000)],
    "many": [bytes([number % 256]) * 50 for number in range(3000)],
}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("name", BUFFERS)
async def test_what_is_sent_arrives_whole_and_in_order(
    authority: Authority, name: str, version: ssl.TLSVersion
) -> None:
    expected = b"".join(BUFFERS[name]) + b"!"
    async with connected(authority, version=version) as (ours, theirs), trio.open_nursery() as nursery:

        async def send() -> None:
            await ours.send(BUFFERS[name])
            await ours.send([b"!"])

        nursery.start_soon(send)
        assert await receive_exactly(theirs, len(expected)) == expected


async def test_ranges_of_files_are_sent_between_buffers(authority: Authority, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3_000_000)
    (tmp_path / "object").write_bytes(data)
    file = OpenFile(os.open(tmp_path / "object", os.O_RDONLY), len(data))
    buffers: list[Sendable] = [b"head", FileRange(file, 5, 2_000_000), b"between", FileRange(file, 7, 8), b"end"]
    expected = b"head" + data[5:2_000_000] + b"between" + data[7:8] + b"end"
    async with connected(authority) as (ours, theirs), trio.open_nursery() as nursery:
        nursery.start_soon(ours.send, buffers)
        assert await receive_exactly(theirs, len(expected)) == expected
    file.release()


async def test_a_file_is_read_in_pieces_between_which_others_run(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(bytes(4 << 20))
    file = OpenFile(os.open(tmp_path / "object", os.O_RDONLY), 4 << 20)
    reads: list[int] = []

    class Watched(FileRange):
        def read(self, position: int, length_bytes: int) -> bytes:
            reads.append(length_bytes)
            return super().read(position, length_bytes)

    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with connected(authority) as (ours, theirs), trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)

        async def send() -> None:
            await ours.send([Watched(file, 0, 4 << 20)])

        nursery.start_soon(send)
        await receive_exactly(theirs, 4 << 20)
        nursery.cancel_scope.cancel()
    assert max(reads) <= PIECE_BYTES
    assert turns >= (4 << 20) // TURN_BYTES
    file.release()


async def test_a_file_that_became_shorter_breaks_the_connection(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(b"short")
    file = OpenFile(os.open(tmp_path / "object", os.O_RDONLY), 100)
    async with connected(authority) as (ours, _theirs):
        with pytest.raises(trio.BrokenResourceError):
            await ours.send([FileRange(file, 0, 100)])
    file.release()


async def test_one_read_takes_all_records_that_are_there(authority: Authority) -> None:
    """Requests that were sent together are taken together; each is a record or more of its own."""
    async with connected(authority) as (ours, theirs):
        for number in range(50):
            await theirs.send_all(bytes([number]) * 1000)
        await trio.sleep(0.05)
        received = await ours.receive(256 << 10)
        assert received == b"".join(bytes([number]) * 1000 for number in range(50))


async def test_what_was_decrypted_is_not_waited_for(authority: Authority) -> None:
    """The socket is not readable any more when all of a record has been read from it."""
    async with connected(authority) as (ours, theirs):
        await theirs.send_all(b"x" * 10_000)
        received = bytearray()
        with trio.fail_after(5):
            while len(received) < 10_000:
                received += await ours.receive(100)
        assert received == b"x" * 10_000


async def test_reads_of_much_let_others_run(authority: Authority) -> None:
    """A record that is there already does not wait for the socket; it is a turn of the event loop all the same."""
    async with connected(authority) as (ours, theirs):
        await theirs.send_all(b"x" * 10_000)
        await ours.receive(1)
        with trio.CancelScope() as scope:
            scope.cancel()
            await ours.receive(1)
        assert scope.cancelled_caught


async def test_a_buffer_is_filled(authority: Authority) -> None:
    data = random.Random(2).randbytes(1_000_000)
    buffer = memoryview(bytearray(len(data)))
    async with connected(authority) as (ours, theirs), trio.open_nursery() as nursery:
        nursery.start_soon(theirs.send_all, data)
        filled = 0
        while filled < len(data):
            filled += await ours.receive_into(buffer[filled:])
    assert buffer == data


async def test_after_the_peers_end_replies_still_go(authority: Authority) -> None:
    """It has said that nothing more comes (close_notify), and reads on.

    That came with its last bytes, was read with them, and waited for ever after.
    """
    context = authority.issue("client").client_context(authority.ca_file)
    has_ended = threading.Event()

    def ask_and_end(address: tuple[str, int]) -> bytes:
        with socket.create_connection(address, 5) as tcp, context.wrap_socket(tcp, server_hostname="localhost") as tls:
            tls.sendall(b"last")
            tls.settimeout(0)
            with suppress(ssl.SSLWantReadError):
                tls._sslobj.shutdown()
            has_ended.set()  # only now, as shutdown() looks for the peer's end and throws away what it finds
            tls.settimeout(30)
            return tls.recv(100)

    async with accepted(authority) as (address, accept), trio.open_nursery() as nursery:
        answers: list[bytes] = []

        async def ask() -> None:
            answers.append(await trio.to_thread.run_sync(ask_and_end, address))

        nursery.start_soon(ask)
        ours = await accept()
        assert await ours.receive(100) == b"last"
        assert await ours.receive(100) == b""
        await trio.to_thread.run_sync(has_ended.wait, 30)
        await ours.send([b"reply"])
        await ours.aclose()
    assert answers == [b"reply"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the program openssl, which can ask for new keys")
async def test_new_keys_may_be_asked_for(authority: Authority) -> None:
    """Messages of TLS after the handshake are no data: a read goes on waiting, and what is sent answers them."""
    async with accepted(authority) as (address, accept):
        command = ["openssl", "s_client", "-brief", "-tls1_3", "-connect", f"127.0.0.1:{address[1]}"]
        process = await trio.lowlevel.open_process(
            [*command, "-CAfile", str(authority.ca_file)], stdin=PIPE, stdout=PIPE, stderr=DEVNULL
        )
        try:
            with trio.fail_after(20):
                ours = await accept()
                for line in (b"one\n", b"K\n", b"two\n", b"k\n", b"three\n"):  # K: both sides; k: its own
                    await process.stdin.send_all(line)
                    await trio.sleep(0.1)  # it takes a line for a command only if that is all it reads
                    if line not in (b"K\n", b"k\n"):
                        assert await ours.receive(100) == line
                        await ours.send([b"got ", line])
                        assert await receive_exactly(process.stdout, len(line) + 4) == b"got " + line
                await ours.aclose()
        finally:
            process.kill()
            await process.wait()


async def test_an_end_without_a_word_is_an_end(authority: Authority) -> None:
    async with connected(authority) as (ours, theirs):
        await theirs.transport_stream.aclose()
        assert await ours.receive(100) == b""


async def test_our_end_is_said(authority: Authority) -> None:
    """The peer can tell it from a connection that was cut."""
    async with connected(authority) as (ours, theirs):
        await ours.send([b"last"])
        await ours.aclose()
        assert await theirs.receive_some(100) == b"last"
        assert await theirs.receive_some(100) == b""  # trio raises if the end was not said


async def test_bytes_that_are_not_of_the_peer_break_the_connection(authority: Authority) -> None:
    async with connected(authority) as (ours, theirs):
        await theirs.transport_stream.send_all(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(trio.BrokenResourceError):
            await ours.receive(100)


async def test_what_the_peer_does_not_take_stands_still_and_is_seen(authority: Authority) -> None:
    async with connected(authority, buffer_bytes=64 << 10) as (ours, _theirs), trio.open_nursery() as nursery:
        nursery.start_soon(ours.send, [bytes(32 << 20)])
        await trio.sleep(0.2)
        assert ours.untaken_bytes() > 0
        nursery.cancel_scope.cancel()


async def test_closing_wakes_who_reads(authority: Authority) -> None:
    async with connected(authority) as (ours, _theirs), trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await ours.receive(100)

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await ours.aclose()


async def test_a_read_and_a_write_may_both_wait_until_something_can_be_written(authority: Authority) -> None:
    """trio lets one task at a time wait for that: the second one raised BusyResourceError."""
    async with connected(authority) as (ours, _theirs), trio.open_nursery() as nursery:
        done: list[str] = []

        class Crowded:
            """A socket of which either operation has to wait for room once."""

            def __init__(self) -> None:
                self.left = {"recv": 1, "send": 1}

            def operation(self, name: str) -> int:
                if self.left[name]:
                    self.left[name] -= 1
                    raise ssl.SSLWantWriteError
                done.append(name)
                return 1

        crowded = Crowded()

        async def perform(name: str) -> None:
            await ours._perform(lambda: crowded.operation(name))

        nursery.start_soon(perform, "recv")
        nursery.start_soon(perform, "send")
    assert sorted(done) == ["recv", "send"]
