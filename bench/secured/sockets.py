"""Sockets of load generators: TCP, or TLS over it with the same non-blocking calls.

The handshake and the login are done before a socket is handed out; the login by `kafscale.client`, over the socket
while it still blocks. Without TLS a load has a plain socket, and what it does costs nothing more.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any

import attrs
import trio

from bench.secured.sasl_ssl import CIPHER, SaslSsl
from kafscale.client.connection import Connection
from kafscale.config import Address
from kafscale.login.security import ClientSecurity

LOGIN_SECONDS = 30.0
RECORD_MAX_BYTES = 16 << 10  # RFC 8446, 5.1


def connect(address: Address, security: SaslSsl | None) -> socket.socket:
    """Connect, log in if there is a `security`, and return a socket that does not block.

    Raises RuntimeError if another cipher comes about, and what `kafscale.client` raises if the login fails.
    """
    connection = socket.create_connection((address.host, address.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if security is not None:
        connection = _secured(connection, address, security)
    connection.setblocking(False)
    return connection


class NonBlockingTls(ssl.SSLSocket):
    """Says by BlockingIOError that it would block, as a socket without TLS does."""

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(data, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv(self, size: int = RECORD_MAX_BYTES, flags: int = 0) -> bytes:
        """One record. With room for it, nothing decrypted is left of which a poll would not tell."""
        assert size >= RECORD_MAX_BYTES
        try:
            return super().recv(size, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Receive all records that are there, as a poll for each costs as much as the record."""
        filled, wanted = 0, nbytes or len(buffer)
        try:
            while filled < wanted and (count := super().recv_into(buffer[filled:wanted])):
                filled += count
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not filled:
                raise BlockingIOError from None
        return filled


def _secured(connection: socket.socket, address: Address, security: SaslSsl) -> ssl.SSLSocket:
    client = security.client()
    assert client.context is not None
    client.context.sslsocket_class = NonBlockingTls
    connection.settimeout(LOGIN_SECONDS)
    secured = client.context.wrap_socket(connection, server_hostname=address.host)
    try:
        if (agreed := secured.cipher()) is None or agreed[0] != CIPHER:
            raise RuntimeError(f"{address} agreed on {agreed}, and not on {CIPHER}, by which brokers are compared")
        trio.run(_log_in, secured, address, client)
    except BaseException:
        secured.close()
        raise
    return secured


async def _log_in(secured: ssl.SSLSocket, address: Address, client: ClientSecurity) -> None:
    assert client.sasl is not None
    connection = await Connection.over(BlockingStream(secured), address, "bench")
    await connection.authenticate(client.sasl)


@attrs.define(eq=False)
class BlockingStream(trio.abc.Stream):
    """A socket that blocks, for a client that does one thing after the other."""

    socket: socket.socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.socket.sendall(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Sending blocks."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return self.socket.recv(max_bytes or RECORD_MAX_BYTES)

    async def aclose(self) -> None:
        self.socket.close()
