"""Links between brokers that can be cut."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.devtools.fakes.cut_stream import CutStream, Late
from tests.devtools.fakes.memory_stream import MemoryStream, memory_stream_pair

Ends = tuple[CutStream, MemoryStream, set[tuple[int, int]], Late]


@pytest.fixture
def ends() -> Ends:
    near, far = memory_stream_pair()
    cuts: set[tuple[int, int]] = set()
    late = Late()
    return CutStream(near, cuts, 1, 2, late), far, cuts, late


async def test_what_is_sent_over_a_cut_link_is_lost(ends: Ends) -> None:
    near, far, cuts, late = ends
    cuts.add((1, 2))
    await near.send_all(b"lost")
    cuts.clear()
    late.arrive()
    await near.send_all(b"sent")
    assert await far.receive_some() == b"sent"


async def test_what_is_kept_arrives_in_order_when_the_link_is_whole_again_and_then_the_end(ends: Ends) -> None:
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


async def test_what_is_sent_takes_its_time(autojump_clock: MockClock) -> None:
    near, far = memory_stream_pair()
    await CutStream(near, set(), 1, 2, seconds=0.5).send_all(b"sent")
    assert trio.current_time() == 0.5
    assert await far.receive_some() == b"sent"
