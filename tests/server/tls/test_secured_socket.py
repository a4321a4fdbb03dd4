"""TLS through memory: what is sent in parts arrives in order, and what is said without being asked."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress

import pytest

from kafscale.server.tls.handshakes import FEED_MAX_BYTES, SecuredSocket
from kafscale.testing.certificates import Authority, make_authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def pair(authority: Authority) -> Iterator[tuple[SecuredSocket, SecuredSocket]]:
    """A server's socket and a client's, after the handshake."""
    here, there = socket.socketpair()
    here.setblocking(False)
    there.setblocking(False)
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 << 10)
    context = authority.issue("broker").server_context()
    context.num_tickets = 0
    server = SecuredSocket.of(here, context)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = (
        authority.issue("client")
        .client_context(authority.ca_file)
        .wrap_bio(incoming, outgoing, server_hostname="localhost")
    )
    client = SecuredSocket(there, tls, incoming, outgoing)
    left = [client, server]
    while left:
        for each in list(left):
            with suppress(BlockingIOError):
                each.feed()
            with suppress(ssl.SSLWantReadError):
                each.tls.do_handshake()
                left.remove(each)
            assert each.flush()
    yield server, client
    here.close()
    there.close()


def read_all(secured: SecuredSocket) -> bytes:
    received = b""
    while True:
        try:
            received += secured.tls.read(16 << 10)
        except ssl.SSLWantReadError:
            try:
                secured.feed()
            except BlockingIOError:
                return received


def test_unsent_bytes_are_sent_before_later_ones(pair: tuple[SecuredSocket, SecuredSocket]) -> None:
    """Records have numbers: one that overtakes another ends the connection."""
    server, client = pair
    first, second = b"a" * 500_000, b"b" * 500_000
    server.tls.write(first)
    assert not server.flush()
    assert server.to_flush_bytes > 0
    server.tls.write(second)
    received = b""
    while not server.flush():
        received += read_all(client)
    assert server.to_flush_bytes == 0
    assert received + read_all(client) == first + second


def test_one_feed_reads_a_limited_number_of_bytes(pair: tuple[SecuredSocket, SecuredSocket]) -> None:
    server, client = pair
    client.tls.write(bytes(FEED_MAX_BYTES + 10_000))
    assert client.flush()
    assert server.feed() == FEED_MAX_BYTES
    assert server.is_fed
    assert server.feed() < FEED_MAX_BYTES
    with pytest.raises(BlockingIOError):
        server.feed()
    assert read_all(server) == bytes(FEED_MAX_BYTES + 10_000)
    assert not server.is_fed


def test_the_end_of_stream_is_read_after_earlier_data(pair: tuple[SecuredSocket, SecuredSocket]) -> None:
    server, client = pair
    client.tls.write(b"last")
    assert client.flush()
    client.tcp.close()
    server.feed()
    assert server.feed() == 0
    assert server.tls.read(100) == b"last"
    with suppress(ssl.SSLEOFError):
        assert server.tls.read(100) == b"", "Python 3.11.2 says it so, 3.11.7 by an error"
