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

from kafscale.server.kafka import tls_transport
from kafscale.server.kafka.tls_transport import (
    PIECE_BYTES,
    RECEIVE_MAX_BYTES,
    RECORD_MAX_BYTES,
    TURN_BYTES,
    WITHOUT_DATA_MAX_BYTES,
    TlsTransport,
)
from kafscale.server.kafka.transport import take_socket
from kafscale.server.tls.handshakes import FEED_MAX_BYTES, Handshakes
from kafscale.store.file.open_files import FileRange, OpenFile, Sendable
from kafscale.testing.certificates import Authority, make_authority
from tests.server.kafka.key_updates import ClientRecords


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("certificates"))


Accept = Callable[[], Awaitable[TlsTransport]]


@asynccontextmanager
async def accepted(authority: Authority, *, buffer_bytes: int = 0) -> AsyncIterator[tuple[tuple[str, int], Accept]]:
    """An address, and what accepts a connection there and does the handshake; those are closed at the end."""
    context = authority.issue("broker").server_context()
    context.num_tickets = 0  # as the broker's: a client that leaves one unread resets the connection at its end
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    transports: list[TlsTransport] = []

    async def accept() -> TlsTransport:
        taken = take_socket(await listener.accept())
        if buffer_bytes:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        handshakes = Handshakes(max_count=1, timeout_seconds=30)
        secured = await handshakes.perform(taken, context, "a test")
        assert secured is not None
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
async def test_sent_bytes_arrive_whole_and_in_order(authority: Authority, name: str, version: ssl.TLSVersion) -> None:
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


async def test_one_read_returns_all_received_tls_records(authority: Authority) -> None:
    """Requests that were sent together are taken together; each is a record or more of its own."""
    async with connected(authority) as (ours, theirs):
        for number in range(50):
            await theirs.send_all(bytes([number]) * 1000)
        await trio.sleep(0.05)
        received = await ours.receive(256 << 10)
        assert received == b"".join(bytes([number]) * 1000 for number in range(50))


async def test_decrypted_bytes_are_returned_without_waiting(authority: Authority) -> None:
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


async def test_the_rest_of_a_frame_is_gathered_but_not_waited_for_long(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once each record that a client sends woke the broker, where nobody else wanted the core: 420 for each MiB."""
    monkeypatch.setattr(tls_transport, "GATHERING_SECONDS", 1e9)
    buffer = memoryview(bytearray(2 * FEED_MAX_BYTES))
    async with connected(authority) as (ours, theirs), trio.open_nursery() as nursery:
        counts: list[int] = []

        async def receive() -> None:
            while sum(counts) < len(buffer):
                counts.append(await ours.receive_into(buffer[sum(counts) :]))

        nursery.start_soon(receive)
        for _ in range(len(buffer) // 2048):
            await theirs.send_all(bytes(2048))
            await trio.testing.wait_all_tasks_blocked()
        while sum(counts) < len(buffer):
            await trio.lowlevel.checkpoint()
        assert len(counts) < 2 + RECORD_MAX_BYTES // 2048 + 2, "the rest, of a record at most, is not gathered"
        await theirs.send_all(b"a small request")
        assert await ours.receive(100) == b"a small request", "as much as for a large one is waited for"
        monkeypatch.setattr(tls_transport, "GATHERING_SECONDS", 0.001)
        for _ in range(3):  # a peer that holds back the rest until it is told that the beginning has come
            await theirs.send_all(bytes(100))
            assert await ours.receive_into(buffer) == 100
        monkeypatch.setattr(tls_transport, "GATHERING_SECONDS", 1e9)
        await theirs.send_all(bytes(100_000))
        filled = 0
        while filled < 100_000:  # whose records are cut anywhere by what is taken from the socket at once
            filled += await ours.receive_into(buffer[filled:100_000])
        await theirs.aclose()
        assert await ours.receive_into(buffer) == 0


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
async def test_the_transport_survives_tls_key_updates(authority: Authority) -> None:
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


async def test_bytes_that_came_with_the_handshake_are_returned_without_waiting(authority: Authority) -> None:
    """It has been taken from the socket then, which does not become readable for it."""
    context = authority.issue("client").client_context(authority.ca_file)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    async with accepted(authority) as (address, accept), trio.open_nursery() as nursery:
        stream = await trio.open_tcp_stream(*address)

        async def ask() -> None:
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await stream.send_all(outgoing.read())
                    incoming.write(await stream.receive_some(65_536))
            client.write(b"first")
            await stream.send_all(outgoing.read())

        nursery.start_soon(ask)
        with trio.fail_after(20):
            ours = await accept()
            assert await ours.receive(100) == b"first"
        await stream.aclose()


async def test_many_small_records_take_few_system_calls(authority: Authority) -> None:
    """librdkafka makes a record of each value: with two calls for each, they took twice the CPU."""
    async with connected(authority) as (ours, theirs):
        for _ in range(200):
            await theirs.send_all(b"x" * 250)
        calls = 0

        class Counting:
            def recv(self, size: int) -> bytes:
                nonlocal calls
                calls += 1
                return real.recv(size)

            def setsockopt(self, *option: int) -> None:
                real.setsockopt(*option)

            def fileno(self) -> int:
                return real.fileno()

        real = ours.secured.tcp
        ours.secured.tcp = Counting()  # type: ignore[assignment]
        buffer = memoryview(bytearray(50_000))
        filled = 0
        while filled < len(buffer):
            filled += await ours.receive_into(buffer[filled:])
        ours.secured.tcp = real
        assert bytes(buffer) == b"x" * 50_000
        assert calls < 20


async def test_at_most_the_requested_bytes_are_received(authority: Authority) -> None:
    async with connected(authority) as (ours, theirs), trio.open_nursery() as nursery:
        data = random.Random(3).randbytes(600_000)
        nursery.start_soon(theirs.send_all, data)
        received = b""
        for size in (1, 20_000, 300_000, 7, 64 << 10, 1 << 20, 1 << 20, 1 << 20):
            part = await ours.receive(size)
            assert 0 < len(part) <= min(size, RECEIVE_MAX_BYTES)
            received += part
            buffer = memoryview(bytearray(size))
            if len(received) < len(data):
                filled = await ours.receive_into(buffer[: len(data) - len(received)])
                received += buffer[:filled]
            if len(received) == len(data):
                break
        while len(received) < len(data):
            received += await ours.receive(1 << 20)
        assert received == data


async def test_a_peer_that_takes_nothing_is_read_from_all_the_same(authority: Authority) -> None:
    """Requests go on while a reply is stuck: what OpenSSL has encrypted for that is nothing that a read waits for."""
    async with connected(authority, buffer_bytes=64 << 10) as (ours, theirs), trio.open_nursery() as nursery:
        nursery.start_soon(ours.send, [bytes(32 << 20)])
        await trio.testing.wait_all_tasks_blocked(0.05)
        with trio.fail_after(20):
            for number in range(20):
                await theirs.send_all(bytes([number]) * 100)
                assert await ours.receive(100) == bytes([number]) * 100
        nursery.cancel_scope.cancel()


async def asks_for_keys(authority: Authority, directory: Path, stream: trio.SocketStream) -> ClientRecords:
    """Do the handshake, and return what makes the client's records from then on."""
    context = authority.issue("client").client_context(authority.ca_file)
    context.keylog_filename = str(directory / "keys")
    await trio.SSLStream(stream, context, server_hostname="localhost").do_handshake()
    return ClientRecords.of(directory / "keys")


async def test_tls_key_updates_between_data_are_accepted(authority: Authority, tmp_path: Path) -> None:
    """What counts is how much of them comes without a byte of data between."""
    async with accepted(authority) as (address, accept), trio.open_nursery() as nursery:
        received = bytearray()

        async def receive() -> None:
            ours = await accept()
            while data := await ours.receive(1000):
                received.extend(data)

        nursery.start_soon(receive)
        stream = await trio.open_tcp_stream(*address)
        records = await asks_for_keys(authority, tmp_path, stream)
        for _ in range(4):
            keys = b"".join(records.key_update() for _ in range(WITHOUT_DATA_MAX_BYTES // 27 - 10))
            await stream.send_all(keys + records.record(b"data"))
            with trio.fail_after(20):
                while not received.endswith(b"data"):
                    await trio.sleep(0.01)
            received.extend(b";")
        assert received == b"data;" * 4
        nursery.cancel_scope.cancel()
    await trio.aclose_forcefully(stream)


async def test_tls_key_updates_without_data_end_the_connection(authority: Authority, tmp_path: Path) -> None:
    async with accepted(authority) as (address, accept), trio.open_nursery() as nursery:
        ended = trio.Event()

        async def receive() -> None:
            ours = await accept()
            with pytest.raises(trio.BrokenResourceError):
                await ours.receive(1000)
            ended.set()

        nursery.start_soon(receive)
        stream = await trio.open_tcp_stream(*address)
        records = await asks_for_keys(authority, tmp_path, stream)
        with trio.fail_after(20):
            while not ended.is_set():
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(b"".join(records.key_update() for _ in range(1000)))
        await trio.aclose_forcefully(stream)


async def test_answers_that_are_not_taken_are_waited_for(authority: Authority, tmp_path: Path) -> None:
    """A read does not go on as long as what was asked for beside the data, such as new keys, is kept for the peer."""
    async with accepted(authority, buffer_bytes=4 << 10) as (address, accept), trio.open_nursery() as nursery:
        kept: list[TlsTransport] = []

        async def receive() -> None:
            kept.append(await accept())
            while await kept[0].receive(1000):
                pass

        nursery.start_soon(receive)
        stream = await trio.open_tcp_stream(*address)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 10)
        records = await asks_for_keys(authority, tmp_path, stream)
        sent_bytes = 0
        with trio.move_on_after(2):  # it does not take all of it
            while sent_bytes < 8 * FEED_MAX_BYTES:
                asked = b"".join(records.key_update() for _ in range(1000)) + records.record(b"data")
                await stream.send_all(asked)
                sent_bytes += len(asked)
        assert kept[0].secured.to_flush_bytes < 2 * FEED_MAX_BYTES
        nursery.cancel_scope.cancel()
    await trio.aclose_forcefully(stream)


async def test_an_end_without_a_word_is_an_end(authority: Authority) -> None:
    async with connected(authority) as (ours, theirs):
        await theirs.transport_stream.aclose()
        assert await ours.receive(100) == b""


async def test_closing_sends_a_tls_close_notify(authority: Authority) -> None:
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
        await ours.aclose()
        with pytest.raises(trio.BrokenResourceError) as caught:
            await theirs.receive_some(100)
        assert "BAD_RECORD_MAC" in str(caught.value.__cause__), "it is told why"


async def test_data_before_a_forged_tls_record_is_read(authority: Authority) -> None:
    async with connected(authority) as (ours, theirs):
        await theirs.send_all(b"good")
        await theirs.transport_stream.send_all(b"\x17\x03\x03\x00\x20" + bytes(32))
        assert await ours.receive(100) == b"good"
        for _ in range(2):
            with pytest.raises(trio.BrokenResourceError):
                await ours.receive(100)


async def test_bytes_the_peer_does_not_read_are_reported_as_untaken(authority: Authority) -> None:
    async with connected(authority, buffer_bytes=64 << 10) as (ours, _theirs), trio.open_nursery() as nursery:
        nursery.start_soon(ours.send, [bytes(32 << 20)])
        await trio.sleep(0.2)
        assert ours.untaken_bytes() > 0
        nursery.cancel_scope.cancel()


async def test_closing_wakes_a_waiting_reader(authority: Authority) -> None:
    async with connected(authority) as (ours, _theirs), trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await ours.receive(100)

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await ours.aclose()


async def test_an_end_is_noticed_and_nothing_is_taken(authority: Authority) -> None:
    async with connected(authority) as (ours, theirs):
        await theirs.send_all(b"ab")
        assert not await ours.wait_end()
        assert await ours.receive(1) == b"a"
        assert not await ours.wait_end()
        assert await ours.receive(1) == b"b"
        await trio.aclose_forcefully(theirs.transport_stream)
        assert await ours.wait_end()
