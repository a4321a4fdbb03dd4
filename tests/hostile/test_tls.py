"""Attacks on a listener with TLS, with a well-behaved client of the same broker beside them.

Half handshakes cost a socket each until they give way or their time is over; whole ones cost CPU, in threads.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import rsa

from kafscale.client.client import connect
from kafscale.errors import BrokerUnavailable
from kafscale.login.security import client_security
from tests.devtools.processes import timed_loop
from tests.devtools.processes.tls import TlsBroker, tls_broker
from tests.hostile.hostile import announced_frame, bystander, next_answer, raw_connections
from tests.server.kafka.key_updates import ClientRecords

GROWN_MAX_MIB = 200
METADATA = 3
HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)


@pytest.fixture(scope="module")
def broker() -> Iterator[TlsBroker]:
    with tls_broker(*timed_loop.fixed(ssl_handshake_timeout_seconds=3), program=timed_loop.PROGRAM) as running:
        yield running
        assert running.process.returncode is None, running.process.log


async def _good_client(broker: TlsBroker) -> None:
    """Connects over TLS, and asks for something.

    On a busy machine the deadline of its own handshake may pass; then it tries again, as clients do.
    """
    security = client_security({"security.protocol": "SSL", "ssl.ca.location": str(broker.authority.ca_file)})
    with trio.fail_after(30):
        while True:
            with suppress(BrokerUnavailable):
                async with connect(broker.address, security=security) as client:
                    await client.metadata([])
                    return


async def _all_end(streams: Sequence[trio.abc.ReceiveStream], within_seconds: float) -> None:
    with trio.fail_after(within_seconds):
        for stream in streams:
            assert await next_answer(stream) is None


async def test_unfinished_tls_handshakes_do_not_keep_a_client_out(broker: TlsBroker) -> None:
    """More than there are places for; each ends by its deadline, a good client gets in meanwhile."""
    async with bystander(broker.process) as seen, raw_connections(broker.address, 400) as attackers:
        for attacker in attackers[:200]:
            with suppress(trio.BrokenResourceError):  # it has ended already
                await attacker.send_all(HALF_HELLO)
        await _good_client(broker)
        await _all_end(attackers, 30)
    assert seen.problems(grown_max_mib=GROWN_MAX_MIB) == []
    lines = broker.process.log.count("whose TLS handshake failed")
    assert 1 <= lines <= 40, "ten lines in ten seconds"


async def test_150_concurrent_tls_handshakes_do_not_delay_others() -> None:
    """With a large key, by which each takes 5 ms of CPU: the event loop would compute for most of a second."""
    key = rsa.generate_private_key(65_537, 4096)
    done = 0

    async def shake(raw: trio.SocketStream, context: ssl.SSLContext) -> None:
        nonlocal done
        await trio.SSLStream(raw, context, server_hostname="localhost").do_handshake()
        done += 1

    with tls_broker(program=timed_loop.PROGRAM, key=key) as broker:
        context = broker.certificate.client_context(broker.authority.ca_file)
        async with bystander(broker.process) as seen, raw_connections(broker.address, 150) as streams:
            async with trio.open_nursery() as nursery:
                for raw in streams:
                    nursery.start_soon(shake, raw, context)
        assert done == len(streams)
        assert seen.problems() == []


async def test_a_flood_of_tls_key_updates_does_not_delay_others(broker: TlsBroker, tmp_path: Path) -> None:
    """Messages of TLS that bring no data: each costs the broker new keys and an answer. It ends that early."""
    context = broker.certificate.client_context(broker.authority.ca_file)
    context.keylog_filename = str(tmp_path / "keys")
    async with raw_connections(broker.address, 1) as [raw]:
        secured = trio.SSLStream(raw, context, server_hostname="localhost")
        await secured.do_handshake()
        records = ClientRecords.of(tmp_path / "keys")
        attack = b"".join(records.key_update() for _ in range(20_000))
        async with bystander(broker.process) as seen:
            with trio.fail_after(30), suppress(trio.BrokenResourceError):
                for start in range(0, len(attack), 1 << 10):
                    await raw.send_all(attack[start : start + (1 << 10)])
                while await raw.receive_some(1 << 16):  # for buffers may have taken all of it
                    pass
        assert seen.problems() == []


async def test_a_connection_without_tls_ends_at_once(broker: TlsBroker) -> None:
    async with bystander(broker.process) as seen, raw_connections(broker.address, 50) as attackers:
        for attacker in attackers:
            await attacker.send_all(announced_frame(1 << 20, api_key=METADATA) + bytes(1000))
        await _all_end(attackers, 2.5)
    assert seen.problems() == []


@pytest.mark.faults
async def test_the_bounds_on_frames_hold_over_tls() -> None:
    """What is announced takes no memory, and half a frame ends its connection."""
    with tls_broker(*timed_loop.fixed(frame_timeout_seconds=1), program=timed_loop.PROGRAM) as broker:
        context = broker.certificate.client_context(broker.authority.ca_file)
        async with bystander(broker.process) as seen, raw_connections(broker.address, 20) as sockets:
            attackers = [trio.SSLStream(each, context, server_hostname="localhost") for each in sockets]
            for attacker in attackers:
                await attacker.send_all(announced_frame(1 << 20, api_key=METADATA))
            await _all_end(attackers, 20)
            async with raw_connections(broker.address, 1) as [raw]:
                stranger = trio.SSLStream(raw, context, server_hostname="localhost")
                await stranger.send_all(announced_frame(90 << 20, api_key=METADATA))
                await _all_end([stranger], 5)
        assert seen.problems(grown_max_mib=GROWN_MAX_MIB) == []


@pytest.mark.faults
async def test_a_connection_without_a_handshake_gives_way_to_a_new_one() -> None:
    with tls_broker("--max-connections", "4") as broker:
        async with raw_connections(broker.address, 4):
            await trio.sleep(2.2)  # from which on they give way
            await _good_client(broker)


async def test_sessions_are_not_resumed(broker: TlsBroker) -> None:
    """Who comes with a ticket does not show a certificate again, though its authority may be trusted no more."""
    context = broker.certificate.client_context(broker.authority.ca_file)
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # in TLSv1.3 there would be a message of its own
    async with raw_connections(broker.address, 1) as [raw]:
        secured = trio.SSLStream(raw, context, server_hostname="localhost")
        await secured.do_handshake()
        assert not secured._ssl_object.session.has_ticket  # type: ignore[attr-defined]
