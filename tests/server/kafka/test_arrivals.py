"""Half and waiting requests: one budget, in which one can always finish; deadlines that move with what has come."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kafscale.concurrency.byte_budget import ByteBudget
from kafscale.server.kafka.arrivals import FREE_BYTES, PROGRESS_BYTES, SLOWEST_BYTES, STEP_BYTES, Arrival, Arrivals

MIB = 1 << 20
TIMEOUT_SECONDS = 30.0


@attrs.define
class Rig:
    arrivals: Arrivals
    pool_is_short: bool = False
    given_up: dict[Arrival, str] = attrs.field(factory=dict)

    def arrival(self, frame_bytes: int = 0) -> Arrival:
        made: Arrival = Arrival(self.arrivals, lambda reason: self.given_up.setdefault(made, reason) and made.end())
        made.note(frame_bytes)
        return made


@pytest.fixture
async def rig(nursery: trio.Nursery) -> Rig:
    arrivals = Arrivals(
        buffer_bytes=4 * MIB,
        pool=ByteBudget(8 * MIB),
        timeout_seconds=TIMEOUT_SECONDS,
        pool_is_short=lambda: made.pool_is_short,
    )
    made = Rig(arrivals)
    nursery.start_soon(arrivals.run)
    return made


async def test_small_requests_do_not_count(autojump_clock: MockClock, rig: Rig) -> None:
    many = [rig.arrival(FREE_BYTES) for _ in range(1000)]
    assert rig.arrivals.used_bytes == 0
    many[0].note(FREE_BYTES + 1)
    assert rig.arrivals.used_bytes == 1
    many[0].queued_bytes += 10
    many[0].recount()
    assert rig.arrivals.used_bytes == 11
    many[0].end()
    assert rig.arrivals.used_bytes == 0


async def test_bytes_in_the_pool_do_not_count(autojump_clock: MockClock, rig: Rig) -> None:
    arrival = rig.arrival(MIB)
    arrival.pool_bytes = 2 * MIB
    arrival.note(MIB)
    assert rig.arrivals.used_bytes == 0


async def test_one_connection_may_exceed_the_budget_while_others_wait(
    autojump_clock: MockClock, rig: Rig, nursery: trio.Nursery
) -> None:
    first, second = rig.arrival(3 * MIB), rig.arrival(3 * MIB)
    resumed: list[Arrival] = []

    async def wait(arrival: Arrival) -> None:
        assert rig.arrivals.must_wait(arrival)
        await rig.arrivals.wait_for_room(arrival)
        resumed.append(arrival)

    nursery.start_soon(wait, first)
    await wait_all_tasks_blocked()
    nursery.start_soon(wait, second)
    await trio.sleep(0.5)
    assert resumed == [first]
    first.note(3 * MIB + STEP_BYTES)
    await rig.arrivals.wait_for_room(first)  # it goes on until its frame is whole
    await trio.sleep(0.5)
    assert resumed == [first]
    first.note(0)
    await wait_all_tasks_blocked()
    assert resumed == [first, second]
    assert not rig.given_up


async def test_a_connection_with_only_whole_requests_waits_until_they_are_handled(
    autojump_clock: MockClock, rig: Rig, nursery: trio.Nursery
) -> None:
    """One after the other went on as if its frame had begun, each until its own limit, past what all may have."""
    rig.arrival(5 * MIB)
    waiting, resumed = rig.arrival(), trio.Event()
    waiting.queued_bytes = MIB
    waiting.recount()

    async def wait() -> None:
        await rig.arrivals.wait_for_room(waiting)
        resumed.set()

    nursery.start_soon(wait)
    await trio.sleep(0.5)
    assert not resumed.is_set()
    waiting.queued_bytes = 0
    waiting.recount()
    await wait_all_tasks_blocked()
    assert resumed.is_set()
    assert waiting.counted_bytes == 0


async def test_a_paused_connection_allows_another_to_exceed_the_budget(
    autojump_clock: MockClock, rig: Rig, nursery: trio.Nursery
) -> None:
    paused, waiting = rig.arrival(3 * MIB), rig.arrival(3 * MIB)
    await rig.arrivals.wait_for_room(paused)
    rig.arrivals.drop_favourite(paused)
    with paused.excused(), trio.fail_after(0.5):
        await rig.arrivals.wait_for_room(waiting)


async def test_a_waiting_client_that_leaves_frees_its_place(autojump_clock: MockClock, rig: Rig) -> None:
    first, second = rig.arrival(3 * MIB), rig.arrival(3 * MIB)
    await rig.arrivals.wait_for_room(first)
    with trio.move_on_after(0.5):
        await rig.arrivals.wait_for_room(second)
    assert rig.arrivals.waiting_count == 0
    first.end()
    second.end()
    assert rig.arrivals.used_bytes == 0
    await rig.arrivals.wait_for_room(rig.arrival(5 * MIB))  # nobody is the favourite any more


async def test_a_stalled_connection_is_closed_for_waiting_ones(
    autojump_clock: MockClock, rig: Rig, nursery: trio.Nursery
) -> None:
    stalled, waiting = rig.arrival(4 * MIB), rig.arrival(3 * MIB)
    await rig.arrivals.wait_for_room(stalled)
    with trio.fail_after(4):
        await rig.arrivals.wait_for_room(waiting)
    assert list(rig.given_up) == [stalled]


async def test_a_connection_that_makes_progress_is_not_closed(
    autojump_clock: MockClock, rig: Rig, nursery: trio.Nursery
) -> None:
    coming, waiting = rig.arrival(4 * MIB), rig.arrival(3 * MIB)
    await rig.arrivals.wait_for_room(coming)
    nursery.start_soon(rig.arrivals.wait_for_room, waiting)
    for number in range(20):
        await trio.sleep(0.5)
        coming.note(4 * MIB + (number + 1) * PROGRESS_BYTES)
    assert not rig.given_up


async def test_slow_clients_stay_while_there_is_room(autojump_clock: MockClock, rig: Rig) -> None:
    rig.arrival(3 * MIB)
    await trio.sleep(20)
    assert not rig.given_up


@pytest.mark.parametrize("pool_is_short", [False, True])
async def test_a_stalled_connection_that_holds_pool_memory_is_closed_when_it_is_short(
    autojump_clock: MockClock, rig: Rig, pool_is_short: bool
) -> None:
    stalled = rig.arrival(MIB)
    stalled.pool_bytes = 2 * MIB
    stalled.note(MIB)
    rig.pool_is_short = pool_is_short
    await trio.sleep(5)
    assert bool(rig.given_up) == pool_is_short


async def test_a_frame_deadline_moves_only_with_received_bytes(autojump_clock: MockClock, rig: Rig) -> None:
    """Bytes that trickle in put it off by what they are worth, not by as much as was waited for them."""
    trickling = rig.arrival(1)
    coming = rig.arrival(1)
    for second in range(60):
        await trio.sleep(1)
        coming.note(SLOWEST_BYTES * (second + 1))
        if trickling not in rig.given_up:
            trickling.note(second + 2)
        assert (trickling in rig.given_up) == (second > TIMEOUT_SECONDS + 1) or abs(second - TIMEOUT_SECONDS) <= 2
    assert coming not in rig.given_up
    assert "too slowly" in rig.given_up[trickling]


async def test_time_for_which_a_connection_is_not_read_from_does_not_count(autojump_clock: MockClock, rig: Rig) -> None:
    arrival = rig.arrival(1)
    await trio.sleep(TIMEOUT_SECONDS - 5)
    with arrival.excused():
        await trio.sleep(10 * TIMEOUT_SECONDS)
    await trio.sleep(4)
    assert not rig.given_up
    await trio.sleep(3)
    assert list(rig.given_up) == [arrival]


async def test_time_for_which_the_process_stood_still_does_not_count(autojump_clock: MockClock, rig: Rig) -> None:
    arrival = rig.arrival(1)
    await trio.sleep(5)
    autojump_clock.jump(10 * TIMEOUT_SECONDS)
    await trio.sleep(5)
    assert not rig.given_up
    await trio.sleep(TIMEOUT_SECONDS)
    assert list(rig.given_up) == [arrival]


async def test_nothing_is_looked_at_while_nothing_is_under_way(
    autojump_clock: MockClock, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[float] = []
    monkeypatch.setattr(Arrivals, "_sweep", lambda self, seconds: swept.append(seconds))
    await trio.sleep(1000)
    assert not swept
    arrival = rig.arrival(1)
    await trio.sleep(5)
    assert 4 <= len(swept) <= 6
    arrival.end()
    await trio.sleep(1000)
    assert len(swept) <= 7
