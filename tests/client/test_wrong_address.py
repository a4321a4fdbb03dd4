"""Wrong addresses: another protocol, TLS or none, nothing listening. Each error says what to do."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from kafscale.client import connect
from kafscale.config import Address
from kafscale.errors import BrokerUnavailable
from kafscale.login.security import PLAINTEXT, ClientSecurity
from kafscale.login.security import client_security as security_of
from kafscale.testing.certificates import make_authority

Handler = Callable[[trio.SocketStream], Awaitable[None]]


async def said(handler: Handler, security: ClientSecurity = PLAINTEXT) -> str:
    """Return what a client says of a server that handles its connections so."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await handler(stream)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        address = Address("127.0.0.1", listeners[0].socket.getsockname()[1])
        told = await refused(address, security)
        nursery.cancel_scope.cancel()
    return told


async def refused(address: Address, security: ClientSecurity = PLAINTEXT) -> str:
    with pytest.raises(BrokerUnavailable) as caught:
        async with connect(address, security=security):
            pass
    return str(caught.value)


async def test_an_http_server() -> None:
    async def http(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    assert "is not a Kafka listener: an HTTP server answered; is it the port of --admin-listen" in await said(http)


async def test_an_admin_server_which_closes_the_connection() -> None:
    async def admin(stream: trio.SocketStream) -> None:
        await stream.receive_some()

    assert "closed the connection; is that a Kafka listener? Where it wants TLS, set security.protocol" in await said(
        admin
    )


async def test_plaintext_to_a_listener_with_tls(tmp_path: Path) -> None:
    context = make_authority(tmp_path).issue("broker").server_context()

    async def secured(stream: trio.SocketStream) -> None:
        with pytest.raises(trio.BrokenResourceError):
            await trio.SSLStream(stream, context, server_side=True).do_handshake()

    assert "Where it wants TLS, set security.protocol=SSL or SASL_SSL" in await said(secured)

    async def alerting(stream: trio.SocketStream) -> None:  # as Java's TLS does
        await stream.receive_some()
        await stream.send_all(b"\x15\x03\x03\x00\x02\x02\x50")

    assert "is not a Kafka listener: it speaks TLS; set security.protocol=SSL or SASL_SSL" in await said(alerting)


async def test_tls_to_a_plaintext_listener_suggests_plaintext(tmp_path: Path) -> None:
    """The error was WRONG_VERSION_NUMBER, or UNEXPECTED_EOF_WHILE_READING, and asked for authorities."""
    ca_file = make_authority(tmp_path).ca_file
    security = security_of({"security.protocol": "SSL", "ssl.ca.location": str(ca_file)})

    async def http(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    told = await said(http, security)
    assert "it does not speak TLS; where that listener has no TLS, set security.protocol=PLAINTEXT" in told

    async def closing(stream: trio.SocketStream) -> None:
        await stream.receive_some()  # as of a frame that is too large

    told = await said(closing, security)
    assert "where that listener has no TLS, set security.protocol=PLAINTEXT or SASL_PLAINTEXT" in told


async def test_a_certificate_of_an_authority_that_is_not_trusted(tmp_path: Path) -> None:
    context = make_authority(tmp_path).issue("broker").server_context()
    other = make_authority(tmp_path, "other").ca_file
    security = security_of({"security.protocol": "SSL", "ssl.ca.location": str(other)})

    async def secured(stream: trio.SocketStream) -> None:
        with pytest.raises(trio.BrokenResourceError):
            await trio.SSLStream(stream, context, server_side=True).do_handshake()

    told = await said(secured, security)
    assert "its certificate is not valid here" in told
    assert "does ssl.truststore.location or ssl.ca.location have its authority?" in told


async def test_an_unresolvable_host_is_not_reported_as_a_missing_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_args: object, **_kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(trio.socket, "getaddrinfo", unknown)
    told = await refused(Address("nohost.invalid", 9092))
    why = "there is no host of that name (Name or service not known); check the name"
    assert told == f"can't connect to nohost.invalid:9092: {why}"


async def test_a_port_without_a_listener_is_reported_as_refused() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = Address(*bound.getsockname())
        assert await refused(address) == (
            f"can't connect to {address}: Connection refused; is a broker listening there?"
        )
