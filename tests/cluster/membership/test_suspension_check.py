"""A process that was suspended looks before it answers anybody."""

from __future__ import annotations

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.membership.peers.lease import LOOK_MAX_SECONDS, PAUSE_SECONDS, SuspensionCheck
from kafscale.errors import Fenced, StoreUnavailable
from tests.devtools.world.determinism import run_seeded
from tests.devtools.world.simulated_process import PROCESS, Process, suspend_machine


@attrs.define(eq=False)
class Bucket:
    """What is looked at: `failure` is what a look raises, after so many seconds."""

    seconds: float = 0.1
    failure: Exception | None = None
    look_count: int = 0

    async def look(self) -> None:
        self.look_count += 1
        await trio.sleep(self.seconds)
        if self.failure is not None:
            raise self.failure


async def test_a_process_that_was_never_suspended_does_not_look(autojump_clock: MockClock) -> None:
    bucket = Bucket()
    wakefulness = SuspensionCheck(bucket.look)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakefulness.run)
        for _ in range(100):
            await trio.sleep(0.3)
            await wakefulness.wait()
        nursery.cancel_scope.cancel()
    assert bucket.look_count == 0


@pytest.mark.parametrize("failure", [None, StoreUnavailable("away")])
def test_a_resumed_process_looks_once_before_all_its_answers(failure: Exception | None) -> None:
    process, bucket, answered = Process(), Bucket(failure=failure), list[float]()

    async def serve() -> None:
        PROCESS.set(process)
        wakefulness = SuspensionCheck(bucket.look)

        async def answer() -> None:
            await trio.sleep(2.0)
            await wakefulness.wait()
            answered.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wakefulness.run)
            for _ in range(5):
                nursery.start_soon(answer)
            await trio.sleep(20.0)
            nursery.cancel_scope.cancel()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await trio.sleep(1.0)
            process.suspend()
            await trio.sleep(9.0)
            process.resume()

    run_seeded(1, run)
    assert answered == [10.1] * 5
    assert bucket.look_count == 1


async def test_a_process_declared_dead_meanwhile_does_not_answer(autojump_clock: MockClock) -> None:
    wakefulness = SuspensionCheck(Bucket(failure=Fenced("declared dead")).look)
    await trio.sleep(2 * PAUSE_SECONDS)
    with pytest.raises(Fenced):
        await wakefulness.wait()


async def test_all_callers_that_share_a_fenced_look_are_refused(
    autojump_clock: MockClock,
) -> None:
    wakefulness, refused_count = SuspensionCheck(Bucket(failure=Fenced("declared dead")).look), 0
    await trio.sleep(2 * PAUSE_SECONDS)

    async def answer() -> None:
        nonlocal refused_count
        with pytest.raises(Fenced):
            await wakefulness.wait()
        refused_count += 1

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(answer)
    assert refused_count == 3


async def test_a_look_of_a_cancelled_caller_is_repeated_by_another(autojump_clock: MockClock) -> None:
    bucket = Bucket(seconds=0.5)
    wakefulness = SuspensionCheck(bucket.look)
    await trio.sleep(2 * PAUSE_SECONDS)
    answered_at = list[float]()

    async def answer() -> None:
        await wakefulness.wait()
        answered_at.append(trio.current_time())

    began = trio.current_time()
    async with trio.open_nursery() as others:
        others.start_soon(answer)
        with trio.move_on_after(0.25):
            await wakefulness.wait()
    assert bucket.look_count == 2
    assert answered_at == [began + 0.75]


async def test_a_machine_that_was_suspended_looks_as_well(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock that trio goes by has stood still, too."""
    bucket = Bucket()
    wakefulness = SuspensionCheck(bucket.look)
    await wakefulness.wait()
    suspend_machine(monkeypatch, 600.0)
    await wakefulness.wait()
    await wakefulness.wait()
    assert bucket.look_count == 1


async def test_answers_wait_only_briefly_for_an_unreachable_bucket(autojump_clock: MockClock) -> None:
    wakefulness = SuspensionCheck(Bucket(seconds=100.0).look)
    await trio.sleep(2 * PAUSE_SECONDS)
    began = trio.current_time()
    await wakefulness.wait()
    assert trio.current_time() == began + LOOK_MAX_SECONDS
    await wakefulness.wait()
    assert trio.current_time() == began + LOOK_MAX_SECONDS
