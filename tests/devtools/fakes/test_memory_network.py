"""Connections in memory over a bad line."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.devtools.fakes.memory_network import MemoryNetwork
from tests.devtools.fakes.memory_stream import memory_stream_pair


async def test_bytes_take_as_long_as_delay_and_bandwidth_say(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(delay_seconds=0.5)
    ends, broker = memory_stream_pair()
    client = network.connect(ends)
    network.set_bandwidth(100.0)
    await client.send_all(bytes(200))
    assert len(await broker.receive_some()) == 200
    assert trio.current_time() == pytest.approx(2.5)
    await broker.send_all(bytes(100))
    assert len(await client.receive_some()) == 100
    assert trio.current_time() == pytest.approx(4.0)
    network.heal()
    await client.send_all(b"x")
    assert trio.current_time() == pytest.approx(4.0)
    assert math.isinf(network._to_broker.bytes_per_second)


async def test_a_reset_reaches_both_ends(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    ends, broker = memory_stream_pair()
    client = network.connect(ends)
    refused: list[Exception] = []

    async def receive() -> None:
        try:
            await client.receive_some()
        except (trio.ClosedResourceError, trio.BrokenResourceError) as exc:
            refused.append(exc)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        client.cut()
    assert len(refused) == 1
    assert await broker.receive_some() == b""
    with pytest.raises(trio.BrokenResourceError):
        await client.send_all(b"x")
    with pytest.raises(trio.BrokenResourceError):
        await broker.send_all(b"x")
    assert network.streams == []


async def test_a_silent_connection_loses_everything_until_it_is_reset(autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    ends, broker = memory_stream_pair()
    client = network.connect(ends)
    client.fall_silent()
    await client.send_all(b"lost")
    await broker.send_all(b"lost too")
    for receive in (client.receive_some, broker.receive_some):
        with trio.move_on_after(100) as patience:
            await receive()
        assert patience.cancelled_caught
    network.heal()
    with pytest.raises(trio.BrokenResourceError):
        await client.receive_some()
    assert await broker.receive_some() == b""


async def test_a_wait_that_is_cancelled_loses_nothing(autojump_clock: MockClock) -> None:
    network = MemoryNetwork(delay_seconds=0.5)
    ends, broker = memory_stream_pair()
    client = network.connect(ends)
    await broker.send_all(b"late")
    with trio.move_on_after(0.1):
        await client.receive_some()
    assert await client.receive_some() == b"late"
