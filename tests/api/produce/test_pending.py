"""Tests of what Produces wait for, and of the errors that they are answered with when it does not come."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from kafscale.api.produce.batches import refusal_of
from kafscale.errors import StorageFailed
from kafscale.log.wal.journal import Round
from kafscale.wire import error_codes


@pytest.mark.parametrize("end_first", [True, False])
@pytest.mark.parametrize(
    ("end", "code"),
    [
        (Round.succeed, None),
        (lambda round: round.fail(StorageFailed("the disk has gone")), error_codes.KAFKA_STORAGE_ERROR),
        (Round.put_off, error_codes.REQUEST_TIMED_OUT),
    ],
)
async def test_a_round_that_fails_refuses_the_produces_waiting_for_it(
    end: Callable[[Round], None], code: int | None, end_first: bool, autojump_clock: MockClock
) -> None:
    round = Round()
    if end_first:
        end(round)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_later, round, end)
        refusal = await refusal_of(round)
    assert (None if refusal is None else refusal.code) == code
    if code == error_codes.KAFKA_STORAGE_ERROR:
        assert refusal is not None
        assert refusal.message == "the disk has gone"


async def test_a_round_that_is_put_off_and_then_durable_refuses_nothing() -> None:
    round = Round()
    round.put_off()
    round.succeed()
    assert await refusal_of(round) is None


async def _end_later(round: Round, end: Callable[[Round], None]) -> None:
    await trio.sleep(1)
    end(round)
