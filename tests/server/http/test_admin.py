"""The page of metrics: made in turns, once for all who wait for it, and for a fifth of the time at most."""

from __future__ import annotations

from collections.abc import Iterator

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kafscale.concurrency.turns import STEPS_PER_TURN
from kafscale.metrics import Metrics, Sample
from kafscale.server.http.admin import REST_FACTOR, Exposition

COUNT = 20 * STEPS_PER_TURN


async def test_others_run_while_very_many_samples_are_looked_for_and_written() -> None:
    """300,000 committed offsets stopped the event loop for 0.85 s a scrape."""
    metrics = Metrics()
    alive = {str(number): number for number in range(COUNT)}

    def samples() -> Iterator[Sample | None]:
        yield from (None for _ in range(COUNT))
        yield from (((name,), number) for name, number in list(alive.items()))

    metrics.callback("kafscale_lag", "Lag.", "group", samples=samples, is_in_pieces=True)
    turns = 0

    async def run_beside() -> None:
        nonlocal turns
        while True:
            turns += 1
            alive[f"new-{turns}"] = 0
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_beside)
        page = await Exposition(metrics).page()
        nursery.cancel_scope.cancel()
    assert turns >= 2 * (COUNT // STEPS_PER_TURN - 1)
    assert page.count(b"\n") > COUNT
    assert page.startswith(b"# HELP kafscale_lag Lag.\n# TYPE kafscale_lag gauge\n")


async def test_waiting_requests_share_one_metrics_page_built_after_they_arrived(autojump_clock: MockClock) -> None:
    metrics, begun = Metrics(), list[float]()

    def samples() -> Iterator[Sample | None]:
        begun.append(trio.current_time())
        for _ in range(STEPS_PER_TURN):
            yield None
        autojump_clock.jump(1.0)  # it takes a second
        yield (), len(begun)

    metrics.callback("kafscale_pages", "Pages.", samples=samples, is_in_pieces=True)
    exposition, answers = Exposition(metrics), dict[str, int]()

    async def ask(name: str) -> None:
        answers[name] = int((await exposition.page()).split()[-1])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "first")
        await wait_all_tasks_blocked()
    async with trio.open_nursery() as nursery:
        for name in ("second", "beside"):
            nursery.start_soon(ask, name)
    assert answers == {"first": 1, "second": 2, "beside": 2}
    assert begun[1] - begun[0] == 1 + REST_FACTOR
