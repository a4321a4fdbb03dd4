"""Tests of connections in memory: streams, networks with faults, cut links."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.devtools.fakes.memory_network import CutStream, Late, MemoryNetwork, MemoryStream, memory_stream_pair


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


async def test_a_silent_connection_loses_all_bytes_until_it_is_reset(autojump_clock: MockClock) -> None:
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


async def test_sent_bytes_arrive_in_order_in_pieces_of_the_requested_size() -> None:
    ours, theirs = memory_stream_pair()
    await ours.send_all(b"one")
    await ours.send_all(bytearray(b"two"))
    assert await theirs.receive_some(4) == b"onet"
    assert await theirs.receive_some() == b"wo"
    await theirs.send_all(memoryview(b"three"))
    assert await ours.receive_some() == b"three"


async def test_a_waiting_reader_is_woken_by_arriving_bytes_and_by_a_close() -> None:
    ours, theirs = memory_stream_pair()
    received: list[bytes] = []

    async def receive() -> None:
        while data := await theirs.receive_some():
            received.append(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        await ours.send_all(b"x")
        await wait_all_tasks_blocked()
        assert received == [b"x"]
        await ours.aclose()


async def test_arrived_bytes_can_be_read_after_the_peer_closes() -> None:
    ours, theirs = memory_stream_pair()
    await ours.send_all(b"x")
    ours.close()
    assert await theirs.receive_some() == b"x"
    assert await theirs.receive_some() == b""
    with pytest.raises(trio.BrokenResourceError):
        await theirs.send_all(b"y")


async def test_an_end_that_is_closed_is_of_no_use() -> None:
    ours, theirs = memory_stream_pair()
    await theirs.send_all(b"lost")

    async def refuse() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await theirs.receive_some()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refuse)
        await wait_all_tasks_blocked()
        theirs.close()
    ours.close()
    with pytest.raises(trio.ClosedResourceError):
        await ours.receive_some()
    with pytest.raises(trio.ClosedResourceError):
        await ours.send_all(b"x")


async def test_two_tasks_cannot_receive_at_once() -> None:
    ours, _ = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.receive_some)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await ours.receive_some()
        nursery.cancel_scope.cancel()


Ends = tuple[CutStream, MemoryStream, set[tuple[int, int]], Late]


@pytest.fixture
def ends() -> Ends:
    near, far = memory_stream_pair()
    cuts: set[tuple[int, int]] = set()
    late = Late()
    return CutStream(near, cuts, 1, 2, late), far, cuts, late


async def test_bytes_sent_over_a_cut_link_are_lost(ends: Ends) -> None:
    near, far, cuts, late = ends
    cuts.add((1, 2))
    await near.send_all(b"lost")
    cuts.clear()
    late.arrive()
    await near.send_all(b"sent")
    assert await far.receive_some() == b"sent"


async def test_bytes_kept_during_a_cut_arrive_in_order_before_the_end_of_stream(ends: Ends) -> None:
    near, far, cuts, late = ends
    late.is_kept = True
    cuts.add((1, 2))
    await near.send_all(b"one, ")
    cuts.clear()
    await near.send_all(b"two")
    await near.aclose()
    late.arrive()
    assert await far.receive_some() == b"one, two"
    assert await far.receive_some() == b""


@pytest.mark.parametrize("is_kept", [False, True])
async def test_an_answer_comes_late_or_never(ends: Ends, autojump_clock: MockClock, is_kept: bool) -> None:
    near, far, cuts, late = ends
    late.is_kept = is_kept
    cuts.add((2, 1))
    received = []

    async def receive() -> None:
        received.append(await near.receive_some())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await far.send_all(b"answer")
        await wait_all_tasks_blocked()
        cuts.clear()
        late.arrive()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert received == [b"answer"] * is_kept


async def test_sending_takes_the_configured_time(autojump_clock: MockClock) -> None:
    near, far = memory_stream_pair()
    await CutStream(near, set(), 1, 2, seconds=0.5).send_all(b"sent")
    assert trio.current_time() == 0.5
    assert await far.receive_some() == b"sent"
