"""A connection that is paused for several reasons is read from again when all of them are gone, not before."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from kafscale.metrics import Counter
from kafscale.server.kafka.pauses import PauseReason, Pauses

OTHERS = [reason for reason in PauseReason if reason is not PauseReason.QUOTA]

STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(OTHERS), st.booleans()),
        st.tuples(st.just("mute"), st.floats(0.1, 5)),
        st.tuples(st.just("sleep"), st.floats(0.1, 5)),
    ),
    max_size=30,
)


def pauses_of_one() -> Pauses:
    return Pauses({reason: Counter() for reason in PauseReason})


@given(STEPS)
@settings(deadline=None, max_examples=40)
def test_reading_resumes_when_no_reason_is_left(steps: list[tuple[object, float]]) -> None:
    async def run() -> None:
        pauses = pauses_of_one()
        muted_until, holding = 0.0, set[object]()
        reads_at: list[float] = []

        async def read(scope: trio.CancelScope) -> None:
            with scope:
                while True:
                    await pauses.wait_until_none()
                    reads_at.append(trio.current_time())
                    await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, scope := trio.CancelScope())
            for what, value in steps:
                if what == "mute":
                    pauses.mute(trio.current_time() + value)
                    muted_until = max(muted_until, trio.current_time() + value)
                elif what == "sleep":
                    await trio.sleep(value)
                else:
                    assert isinstance(what, PauseReason)
                    pauses.set(what, bool(value))
                    holding = holding | {what} if value else holding - {what}
                started, reads_before = trio.current_time(), len(reads_at)
                await trio.sleep(0.05)
                read_since = [at for at in reads_at[reads_before:] if at >= started]
                if holding:
                    assert not read_since
                else:
                    assert all(at >= muted_until for at in read_since)
                    assert read_since or trio.current_time() < muted_until + 0.02
            scope.cancel()

    trio.run(run, clock=MockClock(autojump_threshold=0))


async def test_a_quota_that_comes_while_another_reason_is_waited_for_ends_by_itself(autojump_clock: MockClock) -> None:
    pauses = pauses_of_one()
    pauses.set(PauseReason.IN_FLIGHT_BYTES, True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pauses.wait_until_none)
        await wait_all_tasks_blocked()
        started = trio.current_time()
        pauses.mute(started + 2)
        pauses.set(PauseReason.IN_FLIGHT_BYTES, False)
    assert trio.current_time() - started == pytest.approx(2)


def test_a_pause_reason_is_counted_once_while_it_holds() -> None:
    pauses = pauses_of_one()
    for holds in (True, True, False, True):
        pauses.set(PauseReason.POOL, holds)
    with pauses.because(PauseReason.VALIDATION):
        assert pauses.reasons == {PauseReason.POOL, PauseReason.VALIDATION}
    assert pauses.reasons == {PauseReason.POOL}
    assert [pauses.counts[each].value for each in (PauseReason.POOL, PauseReason.VALIDATION)] == [2, 1]
