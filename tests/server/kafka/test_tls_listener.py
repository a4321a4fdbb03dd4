"""Connections that begin with a handshake of TLS: who they are by their certificate, and what becomes of others.

The acceptor is the broker's; what it would serve is only noted.
"""

from __future__ import annotations

import datetime
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio

from kafscale.api.handling.calls import Peer
from kafscale.config import (
    Address,
    Limits,
    Listener,
    SaslMechanism,
    SecurityProtocol,
    Settings,
    SslClientAuth,
    SslSettings,
    SslVersion,
)
from kafscale.log.partition.chunks import ChunkPool
from kafscale.security.principals import ANONYMOUS
from kafscale.server.kafka import listener
from kafscale.server.kafka.binding import BoundListener, bind, open_listener, open_listener_tls, warn_of_listeners
from kafscale.server.kafka.connection import ConnectionMetrics
from kafscale.server.kafka.listener import Acceptor
from kafscale.server.kafka.transport import Transport
from kafscale.server.tls import handshakes
from kafscale.server.tls.handshakes import HandshakeFailure
from kafscale.testing.certificates import Authority, CertificateFiles, make_authority
from tests.api.handlers import services_of_listeners


@attrs.define(eq=False, kw_only=True)
class NotingAcceptor(Acceptor):
    """Notes who has come, and sends a word back."""

    peers: list[Peer] = attrs.field(factory=list)

    async def serve(self, transport: Transport, peer: Peer) -> None:
        self.peers.append(peer)
        await transport.send([b"welcome"])
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await transport.receive(1)
        await transport.aclose()


@attrs.frozen(kw_only=True)
class Listening:
    """An acceptor at work, and its address."""

    acceptor: NotingAcceptor
    address: Address

    def failed(self, reason: HandshakeFailure) -> int:
        return self.acceptor.handshakes.failed[reason].value


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker_certificate(authority: Authority) -> CertificateFiles:
    return authority.issue("broker")


@asynccontextmanager
async def listening(
    authority: Authority,
    *,
    protocol: SecurityProtocol = SecurityProtocol.SSL,
    limits: Limits | None = None,
    **ssl_options: Any,
) -> AsyncIterator[Listening]:
    broker = CertificateFiles(
        certificate_file=authority.directory / "broker.pem", key_file=authority.directory / "broker-key.pem"
    )
    settings = Settings(
        listeners=(Listener(protocol, "127.0.0.1", 0),),
        ssl=SslSettings(
            ssl_certificate_file=broker.certificate_file,
            ssl_key_file=broker.key_file,
            ssl_client_ca_file=authority.ca_file,
            **ssl_options,
        ),
        limits=limits or Limits(),
    )
    dispatcher: Any = SimpleNamespace(replies_wait_for_memory=False, services=services_of_listeners())
    acceptor = NotingAcceptor(
        dispatcher=dispatcher,
        pool=ChunkPool(1 << 20),
        limits=settings.limits,
        metrics=ConnectionMetrics(),
        tls=open_listener_tls(settings),
    )
    bound = await open_listener(settings.listeners[0], settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor.accept, [bound], nursery)
        yield Listening(acceptor=acceptor, address=Address("127.0.0.1", bound.port))
        nursery.cancel_scope.cancel()


async def greeting(address: Address, context: ssl.SSLContext) -> bytes:
    """Connect, and return what the broker says. Raises BrokenResourceError where the handshake fails on this side."""
    stream = trio.SSLStream(
        await trio.open_tcp_stream(address.host, address.port), context, server_hostname="localhost"
    )
    try:
        return bytes(await stream.receive_some(100))
    finally:
        await trio.aclose_forcefully(stream)


def context_of(authority: Authority, shown: CertificateFiles | None = None) -> ssl.SSLContext:
    return CertificateFiles(certificate_file=Path(), key_file=Path()).client_context(authority.ca_file, shown=shown)


@pytest.mark.usefixtures("broker_certificate")
@pytest.mark.parametrize(
    ("protocol", "client_auth", "shows", "expected"),
    [
        ("SSL", "none", True, str(ANONYMOUS)),
        ("SSL", "requested", False, str(ANONYMOUS)),
        ("SSL", "requested", True, "User:CN=alice"),
        ("SSL", "required", True, "User:CN=alice"),
        ("SASL_SSL", "required", False, str(ANONYMOUS)),  # until it authenticates by SASL
        ("SASL_SSL", "required", True, str(ANONYMOUS)),
    ],
)
async def test_the_principal_of_a_client_comes_from_its_certificate(
    authority: Authority, protocol: str, client_auth: str, shows: bool, expected: str
) -> None:
    alice = authority.issue("alice")
    ways = {"protocol": SecurityProtocol(protocol), "ssl_client_auth": SslClientAuth(client_auth)}
    async with listening(authority, **ways) as listens:
        assert await greeting(listens.address, context_of(authority, alice if shows else None)) == b"welcome"
        [peer] = listens.acceptor.peers
        assert (str(peer.principal), peer.security_protocol) == (expected, protocol)


@pytest.mark.usefixtures("broker_certificate")
async def test_names_are_made_by_the_rules(authority: Authority) -> None:
    ways = {
        "ssl_client_auth": SslClientAuth.REQUIRED,
        "ssl_principal_mapping_rules": "RULE:^CN=([a-z]+)$/$1/U",
    }
    async with listening(authority, **ways) as listens:
        await greeting(listens.address, context_of(authority, authority.issue("alice")))
        assert [str(peer.principal) for peer in listens.acceptor.peers] == ["User:ALICE"]
        assert await greeting(listens.address, context_of(authority, authority.issue("alice.1"))) == b""
        assert len(listens.acceptor.peers) == 1, "no rule applies to the other one"
        assert listens.failed(HandshakeFailure.CLIENT_CERTIFICATE) == 1


@pytest.mark.usefixtures("broker_certificate")
async def test_certificates_that_are_missing_expired_or_of_others_are_refused(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shown = [
        None,
        authority.issue("late", good_for=-datetime.timedelta(minutes=1)),
        make_authority(tmp_path).issue("stranger"),
    ]
    async with listening(authority, ssl_client_auth=SslClientAuth.REQUIRED) as listens:
        for each in shown:
            with pytest.raises(trio.BrokenResourceError):
                await greeting(listens.address, context_of(authority, each))
        assert not listens.acceptor.peers
        await until(lambda: listens.failed(HandshakeFailure.CLIENT_CERTIFICATE) == 3)
    assert "its certificate is missing, or is not of --ssl-client-ca-file (certificate has expired)" in caplog.text


async def until(is_so: Any) -> None:
    with trio.fail_after(20):
        while not is_so():
            await trio.sleep(0.01)


@pytest.mark.usefixtures("broker_certificate")
@pytest.mark.parametrize(
    ("sent", "reason", "line"),
    [
        (b"\x00\x00\x00\x13\x00\x12\x00\x03\x00\x00\x00\x01\x00\x04test\x00", "not_tls", "it does not speak TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "not_tls", "it does not speak TLS; this listener wants security.protocol SSL"),
        (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", "other", "whose TLS handshake failed"),
        (b"", "closed", None),
    ],
)
async def test_bytes_that_are_not_a_handshake_are_logged_in_one_line(
    authority: Authority, caplog: pytest.LogCaptureFixture, sent: bytes, reason: str, line: str | None
) -> None:
    """Whoever only looks whether the port is open costs no line: monitoring does that all the time."""
    async with listening(authority) as listens:
        async with await trio.open_tcp_stream(listens.address.host, listens.address.port) as stream:
            await stream.send_all(sent)
            if not sent:
                await stream.send_eof()
            with suppress(trio.BrokenResourceError):
                while await stream.receive_some(100):
                    pass
        await until(lambda: listens.failed(HandshakeFailure(reason)) == 1)
        assert listens.acceptor.handshakes.count == 0
    warnings = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(warnings) == (line is not None)
    assert line is None or line in warnings[0]


@pytest.mark.usefixtures("broker_certificate")
async def test_old_versions_and_foreign_ciphers_are_refused(authority: Authority) -> None:
    old, foreign = context_of(authority), context_of(authority)
    old.maximum_version = foreign.maximum_version = ssl.TLSVersion.TLSv1_2
    foreign.set_ciphers("ECDHE-ECDSA-CHACHA20-POLY1305")
    async with listening(authority, ssl_ciphers="ECDHE-ECDSA-AES128-GCM-SHA256") as listens:
        assert await greeting(listens.address, old) == b"welcome"
        with pytest.raises(trio.BrokenResourceError):
            await greeting(listens.address, foreign)
        await until(lambda: listens.failed(HandshakeFailure.CIPHER) == 1)
    async with listening(authority, ssl_min_version=SslVersion.TLS_1_3) as listens:
        with pytest.raises(trio.BrokenResourceError) as caught:
            await greeting(listens.address, old)
        assert "ALERT_PROTOCOL_VERSION" in str(caught.value.__cause__), "it is told why"
        await until(lambda: listens.failed(HandshakeFailure.VERSION) == 1)


@pytest.mark.usefixtures("broker_certificate")
async def test_a_client_that_distrusts_the_broker_certificate_is_counted(authority: Authority, tmp_path: Path) -> None:
    context = context_of(make_authority(tmp_path, "another"))

    def connect(address: tuple[str, int]) -> None:  # by Python's own socket: trio's stream does not say why it ends
        with socket.create_connection(address, 20) as tcp, pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(tcp, server_hostname="localhost")

    async with listening(authority) as listens:
        await trio.to_thread.run_sync(connect, (listens.address.host, listens.address.port))
        await until(lambda: listens.failed(HandshakeFailure.SERVER_CERTIFICATE) == 1)


@asynccontextmanager
async def silent_streams(address: Address, count: int) -> AsyncIterator[Sequence[trio.SocketStream]]:
    streams = [await trio.open_tcp_stream(address.host, address.port) for _ in range(count)]
    try:
        yield streams
    finally:
        for stream in streams:
            await trio.aclose_forcefully(stream)


async def has_ended(stream: trio.SocketStream) -> bool:
    with suppress(trio.BrokenResourceError):
        return not await stream.receive_some(1)
    return True


@pytest.mark.usefixtures("broker_certificate")
async def test_a_handshake_has_a_deadline(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    limits = Limits(ssl_handshake_timeout_seconds=0.2)
    async with listening(authority, limits=limits) as listens:
        async with silent_streams(listens.address, 2) as (silent, half):
            await half.send_all(b"\x16\x03\x01\x02\x00")
            with trio.fail_after(10):
                assert await has_ended(silent)
                assert await has_ended(half)
        await until(lambda: listens.failed(HandshakeFailure.TIMEOUT) == 2)
    assert "it took too long" in caplog.text


@pytest.mark.usefixtures("broker_certificate")
async def test_unfinished_handshakes_block_other_clients_only_briefly(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have all places; the oldest of them gives way after a while, long before the deadline."""
    monkeypatch.setattr(handshakes, "SLOW_SECONDS", 0.3)
    async with listening(authority, limits=Limits(max_ssl_handshakes_count=2)) as listens:
        async with silent_streams(listens.address, 5) as streams:
            await until(lambda: listens.acceptor.handshakes.count == 5)
            with trio.fail_after(9):
                assert await greeting(listens.address, context_of(authority)) == b"welcome"
            assert await has_ended(streams[0])
        assert listens.failed(HandshakeFailure.GAVE_WAY) >= 1


@pytest.mark.usefixtures("broker_certificate")
async def test_an_unfinished_handshake_takes_a_connection_slot_and_gives_way(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it takes a slot of --max-connections, and gives it to a new one, unless it is new itself."""
    async with listening(authority, limits=Limits(max_connections_count=2)) as listens:
        async with silent_streams(listens.address, 2) as streams:
            await until(lambda: listens.acceptor.handshakes.count == 2)
            with pytest.raises(trio.BrokenResourceError):
                await greeting(listens.address, context_of(authority))
            assert listens.acceptor.refused_count.value == 1
            monkeypatch.setattr(listener, "SILENT_SECONDS", 0.0)
            assert await greeting(listens.address, context_of(authority)) == b"welcome"
            assert await has_ended(streams[0])
            assert listens.failed(HandshakeFailure.GAVE_WAY) == 1


@pytest.mark.usefixtures("broker_certificate")
async def test_many_handshakes_at_once_are_all_done(authority: Authority) -> None:
    context = context_of(authority)
    async with listening(authority, limits=Limits(max_ssl_handshakes_count=4)) as listens:
        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(greeting, listens.address, context)
        assert listens.acceptor.handshakes.done_count.value == 40
        assert len(listens.acceptor.peers) == 40
        await until(lambda: listens.acceptor.handshakes.count == 0)


@pytest.mark.parametrize("given_bytes", [200 << 10, 50 << 10, 0])
async def test_the_receive_buffer_setting_applies_only_to_tls_listeners(
    given_bytes: int, broker_certificate: CertificateFiles
) -> None:
    settings = Settings(
        listeners=(Listener("PLAINTEXT", "127.0.0.1", 0), Listener("SSL", "127.0.0.1", 0)),
        ssl=SslSettings(
            ssl_certificate_file=broker_certificate.certificate_file,
            ssl_key_file=broker_certificate.key_file,
            ssl_receive_buffer_bytes=given_bytes,
        ),
    )
    found: list[int] = []
    for each in settings.listeners:
        bound = await open_listener(each, settings)
        async with await trio.open_tcp_stream("127.0.0.1", bound.port), await bound.sockets[0].accept() as accepted:
            found.append(accepted.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
        await bound.sockets[0].aclose()
    without, with_tls = found
    assert with_tls == (2 * given_bytes or without)  # half of it is the kernel's own
    assert without not in (400 << 10, 100 << 10)


@pytest.mark.usefixtures("broker_certificate")
async def test_the_steps_of_a_handshake_are_done_in_threads(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the broker: the client's are done here."""
    threads: list[threading.Thread] = []
    do_handshake = ssl.SSLObject.do_handshake

    def noting(self: ssl.SSLObject) -> None:
        if self.server_side:
            threads.append(threading.current_thread())
        do_handshake(self)

    monkeypatch.setattr(ssl.SSLObject, "do_handshake", noting)
    async with listening(authority) as listens:
        assert await greeting(listens.address, context_of(authority)) == b"welcome"
    assert len(threads) >= 2
    assert threading.main_thread() not in threads


@pytest.mark.usefixtures("broker_certificate")
async def test_a_stop_ends_handshakes(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    async with listening(authority) as listens, silent_streams(listens.address, 1) as [stream]:
        await until(lambda: listens.acceptor.handshakes.count == 1)
        listens.acceptor.drain()
        assert await has_ended(stream)
    assert not caplog.records


@pytest.mark.parametrize(
    ("protocol", "host", "client_auth", "is_told"),
    [
        ("PLAINTEXT", "127.0.0.1", "none", False),
        ("PLAINTEXT", "localhost", "none", False),
        ("PLAINTEXT", "0.0.0.0", "none", True),
        ("SSL", "0.0.0.0", "none", True),
        ("SSL", "0.0.0.0", "requested", True),
        ("SSL", "0.0.0.0", "required", False),
        ("PLAINTEXT", "0.0.0.0", "required", True),
        ("SASL_PLAINTEXT", "0.0.0.0", "none", False),
        ("SASL_SSL", "0.0.0.0", "none", False),
    ],
)
async def test_listeners_without_authentication_are_warned_of_once(
    protocol: str, host: str, client_auth: str, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ports = await bind_and_warn(protocol, host, client_auth=SslClientAuth(client_auth))
    assert len(caplog.records) == is_told
    if is_told:
        assert f"anyone who reaches A={host}:{ports[0]} and B={host}:{ports[1]} may read" in caplog.text


@pytest.mark.parametrize(
    ("protocol", "host", "mechanism", "is_told"),
    [
        ("SASL_PLAINTEXT", "0.0.0.0", SaslMechanism.PLAIN, True),
        ("SASL_PLAINTEXT", "0.0.0.0", SaslMechanism.OAUTHBEARER, True),
        ("SASL_PLAINTEXT", "0.0.0.0", SaslMechanism.SCRAM_SHA_512, False),
        ("SASL_PLAINTEXT", "127.0.0.1", SaslMechanism.PLAIN, False),
        ("SASL_SSL", "0.0.0.0", SaslMechanism.PLAIN, False),
    ],
)
async def test_passwords_and_tokens_in_the_clear_are_warned_of_once(
    protocol: str, host: str, mechanism: SaslMechanism, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ports = await bind_and_warn(protocol, host, mechanisms=(SaslMechanism.SCRAM_SHA_256, mechanism))
    assert len(caplog.records) == is_told
    if is_told:
        assert f"clients of A={host}:{ports[0]} and B={host}:{ports[1]} log in with by {mechanism};" in caplog.text


async def bind_and_warn(
    protocol: str,
    host: str,
    *,
    client_auth: SslClientAuth = SslClientAuth.NONE,
    mechanisms: Sequence[SaslMechanism] = (),
) -> list[int]:
    """Open two listeners, and return their ports."""
    bound: list[BoundListener] = [
        await bind(name, Address(host, 0), option="--listen", protocol=SecurityProtocol(protocol)) for name in "AB"
    ]
    warn_of_listeners(bound, client_auth, mechanisms)
    for each in bound:
        for opened in each.sockets:
            await opened.aclose()
    return [each.port for each in bound]
