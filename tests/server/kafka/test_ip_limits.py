"""Connections by IP address: how many there may be, and how many may be made in a second."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.api.handling import quotas as rates
from kafscale.api.handling.calls import Peer
from kafscale.cluster.registries.client_quotas import (
    CONNECTION_CREATION_RATE,
    DEFAULT,
    ClientQuotas,
    Name,
    QuotaChange,
    QuotaEntity,
)
from kafscale.config import Address, IpConnections, Limits
from kafscale.log.partition.chunks import ChunkPool
from kafscale.metrics import Histogram
from kafscale.server.kafka import listener
from kafscale.server.kafka.binding import bind
from kafscale.server.kafka.connection import ConnectionMetrics
from kafscale.server.kafka.ip_limits import IpLimits
from kafscale.server.kafka.listener import Acceptor
from kafscale.server.kafka.transport import Transport
from kafscale.testing.metadata import MemoryMetadataStore
from tests.api.handlers import services_of_listeners


async def limited(
    rates_by_ip: dict[Name, float] | None = None,
    *overrides: IpConnections,
    most: int = Limits().max_connections_per_ip_count,
) -> IpLimits:
    return IpLimits(
        limits=Limits(max_connections_per_ip_count=most, max_connections_per_ip_overrides=overrides),
        quotas=await quotas_of(rates_by_ip or {}),
        throttled_seconds=Histogram(),
    )


async def quotas_of(rates_by_ip: dict[Name, float]) -> ClientQuotas:
    quotas = ClientQuotas(MemoryMetadataStore())
    changes = [
        QuotaChange(entity=QuotaEntity(ip=ip), values={CONNECTION_CREATION_RATE: rate})
        for ip, rate in rates_by_ip.items()
    ]
    await quotas.alter(changes)
    return quotas


async def test_connections_per_ip_are_limited_by_an_override_or_the_default() -> None:
    limits = await limited(None, IpConnections("192.0.2.9", 1), IpConnections("2001:db8::1", 0), most=2)
    hosts = (
        "192.0.2.1",
        "::ffff:192.0.2.1",
        "192.0.2.1",
        "192.0.2.9",
        "::ffff:192.0.2.9",
        "2001:DB8::1",
        "2001:db8::2",
    )
    assert [limits.enter(host) for host in hosts] == [True, True, False, True, False, False, True]
    limits.leave("192.0.2.1")
    assert [limits.enter("192.0.2.1") for _ in range(2)] == [True, False]


async def test_nothing_is_kept_of_an_address_without_connections() -> None:
    limits = await limited()
    for number in range(1000):
        assert limits.enter(f"2001:db8::{number:x}")
        limits.leave(f"2001:db8::{number:x}")
    assert not limits._open


async def test_a_burst_of_ten_seconds_is_allowed_before_the_rate_applies(autojump_clock: MockClock) -> None:
    limits = await limited({"192.0.2.1": 2.0})
    assert [limits.hold_seconds("192.0.2.1") for _ in range(20)] == [0] * 20
    assert limits.hold_seconds("::ffff:192.0.2.1") == 0.5
    assert limits.hold_seconds("192.0.2.1") == 0.5  # those that were not made do not count
    await trio.sleep(11)
    assert [limits.hold_seconds("192.0.2.1") for _ in range(2)] == [0, 0]
    assert limits.throttled_seconds.counts[3] == 0
    assert sum(limits.throttled_seconds.counts) == 2


async def test_a_rate_of_one_ip_overrides_the_default_and_delays_last_at_most_a_second(
    autojump_clock: MockClock,
) -> None:
    limits = await limited({DEFAULT: 0.1, "192.0.2.1": 100.0})
    assert [limits.hold_seconds("192.0.2.2") for _ in range(2)] == [0, 1]
    assert [limits.hold_seconds("192.0.2.1") for _ in range(20)] == [0] * 20
    assert limits.hold_seconds("192.0.2.3") == 0


async def test_the_number_of_tracked_ip_rates_is_bounded(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(rates, "REMEMBERED_MAX_COUNT", 3)
    limits = await limited({DEFAULT: 1.0})
    for number in range(100):
        limits.hold_seconds(f"2001:db8::{number:x}")
    assert len(limits._rates) == 3


# ---- a listener -----------------------------------------------------------------------------------------------------


@attrs.define(eq=False, kw_only=True)
class WelcomingAcceptor(Acceptor):
    """Sends a word, and waits for the end. While it `is_full`, others give way to who comes, as often as is counted."""

    is_full: bool = False
    given_way_count: int = 0

    def _full(self, stream: trio.SocketStream) -> str | None:
        return "full" if self.is_full else None

    def _make_room(self) -> bool:
        self.given_way_count += 1
        return True

    async def serve(self, transport: Transport, peer: Peer) -> None:
        await transport.send([b"welcome"])
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await transport.receive(1)
        await transport.aclose()


@attrs.frozen
class Listening:
    """An acceptor at work, and where."""

    acceptor: WelcomingAcceptor
    address: Address

    async def greeting(self, *, host: str = "127.0.0.1") -> bytes:
        """Connect from one of this machine's addresses, and return what is said, which is nothing at the end."""
        stream = await trio.open_tcp_stream(self.address.host, self.address.port, local_address=host)
        async with stream:
            with suppress(trio.BrokenResourceError):
                return bytes(await stream.receive_some(100))
            return b""


@asynccontextmanager
async def listening(limits: Limits, rates_by_ip: dict[Name, float] | None = None) -> AsyncIterator[Listening]:
    services = services_of_listeners(await quotas_of(rates_by_ip or {}))
    dispatcher: Any = SimpleNamespace(replies_wait_for_memory=False, services=services)
    acceptor = WelcomingAcceptor(
        dispatcher=dispatcher, pool=ChunkPool(1 << 20), limits=limits, metrics=ConnectionMetrics()
    )
    bound = await bind("PLAINTEXT", Address("127.0.0.1", 0), option="--listen")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor.accept, [bound], nursery)
        yield Listening(acceptor, Address("127.0.0.1", bound.port))
        nursery.cancel_scope.cancel()


async def test_connections_above_the_limit_are_closed_and_other_addresses_connect() -> None:
    async with listening(Limits(max_connections_per_ip_count=1)) as listens:
        first = await trio.open_tcp_stream(listens.address.host, listens.address.port)
        assert await first.receive_some(100) == b"welcome"
        assert await listens.greeting() == b""
        assert listens.acceptor.refused_count.value == 1
        assert await listens.greeting(host="127.0.0.2") == b"welcome"
        await first.aclose()
        with trio.fail_after(10):
            while await listens.greeting() == b"":
                pass


async def test_an_ip_at_its_limit_displaces_no_other_connection() -> None:
    async with listening(Limits(max_connections_per_ip_count=1)) as listens:
        listens.acceptor.is_full = True
        first = await trio.open_tcp_stream(listens.address.host, listens.address.port)
        assert await first.receive_some(100) == b"welcome"
        assert [await listens.greeting() for _ in range(3)] == [b""] * 3
        assert listens.acceptor.given_way_count == 1
        await first.aclose()


@pytest.mark.parametrize("held_max_count", [10, 0])
async def test_connections_above_the_rate_are_delayed_and_closed_without_blocking_others(
    held_max_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HELD_MAX_COUNT", held_max_count)
    async with listening(Limits(), {"127.0.0.1": 2.0}) as listens:
        assert [await listens.greeting() for _ in range(20)] == [b"welcome"] * 20
        seconds: list[float] = []

        async def come() -> None:
            began = trio.current_time()
            assert await listens.greeting() == b""
            seconds.append(trio.current_time() - began)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(come)
            assert await listens.greeting(host="127.0.0.2") == b"welcome"
            if held_max_count:
                assert not seconds
        assert all(each > 0.2 for each in seconds) == bool(held_max_count)


async def test_a_stop_does_not_wait_for_delayed_connections() -> None:
    async with listening(Limits(), {"127.0.0.1": 0.1}) as listens:
        assert await listens.greeting() == b"welcome"
        stream = await trio.open_tcp_stream(listens.address.host, listens.address.port)
        with trio.move_on_after(0.1) as still_there:
            await stream.receive_some(1)
        assert still_there.cancelled_caught
        listens.acceptor.dispatcher.services.draining.set()
        began = trio.current_time()
        assert await stream.receive_some(1) == b""
        assert trio.current_time() - began < 0.8
        await stream.aclose()
