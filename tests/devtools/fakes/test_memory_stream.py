"""Connections in memory: what is sent arrives, and both ends learn of a close."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.devtools.fakes.memory_stream import memory_stream_pair


async def test_what_is_sent_arrives_in_order_and_in_pieces_as_wanted() -> None:
    ours, theirs = memory_stream_pair()
    await ours.send_all(b"one")
    await ours.send_all(bytearray(b"two"))
    assert await theirs.receive_some(4) == b"onet"
    assert await theirs.receive_some() == b"wo"
    await theirs.send_all(memoryview(b"three"))
    assert await ours.receive_some() == b"three"


async def test_who_waits_is_woken_by_what_arrives_and_by_a_close() -> None:
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


async def test_what_has_arrived_is_read_after_the_other_end_is_closed() -> None:
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
