"""Processes of one run: a suspended one takes no step, and goes on as if nothing had happened."""

from __future__ import annotations

import time

import trio

from tests.devtools.world.determinism import run_seeded
from tests.devtools.world.simulated_process import PROCESS, Process

STEP_SECONDS = 1.0


async def count(process: Process, counts: list[float]) -> None:
    PROCESS.set(process)
    while True:
        await trio.sleep(STEP_SECONDS)
        counts.append(trio.current_time())


def test_a_suspended_process_takes_no_step_until_it_resumes() -> None:
    process, counts, others = Process(), list[float](), list[float]()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count, process, counts)
            nursery.start_soon(count, Process(), others)
            await trio.sleep(2.5)
            process.suspend()
            await trio.sleep(10)
            assert counts == [1, 2]
            process.resume()
            await trio.sleep(0.1)
            assert counts == [1, 2, 12.5]
            nursery.cancel_scope.cancel()

    run_seeded(1, run)
    assert others == list(range(1, 13))


def test_a_process_cancelled_while_suspended_ends_when_it_resumes() -> None:
    process, counts = Process(), list[float]()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count, process, counts)
            await trio.sleep(1.5)
            process.suspend()
            nursery.cancel_scope.cancel()
            process.resume()

    run_seeded(1, run)
    assert counts == [1]


def test_each_process_has_a_wall_clock() -> None:
    async def run() -> None:
        process, seen = Process(clock_skew_ns=5), list[int]()

        async def look() -> None:
            PROCESS.set(process)
            seen.append(time.time_ns())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
        assert seen == [time.time_ns() + 5]

    run_seeded(1, run)
