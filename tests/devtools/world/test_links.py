"""A line to the bucket: effects of PUTs whose sender does not wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio
from trio.testing import MockClock

from kafscale.errors import PreconditionFailed, StoreUnavailable
from kafscale.store.memory import MemoryStore
from tests.devtools.world.links import STRAGGLER_MAX_SECONDS, BucketLine


@pytest.fixture
def bucket() -> MemoryStore:
    return MemoryStore()


def line_to(bucket: MemoryStore, nursery: trio.Nursery) -> BucketLine:
    def spawn(async_fn: Callable[[], Awaitable[None]]) -> None:
        nursery.start_soon(async_fn)

    return BucketLine(store=bucket, spawn=spawn, random=Random(1), network_seconds=1.0, late_max_seconds=5.0)


async def test_a_put_in_flight_when_its_sender_dies_arrives_later(
    autojump_clock: MockClock, bucket: MemoryStore
) -> None:
    async with trio.open_nursery() as nursery:
        line = line_to(bucket, nursery)
        with trio.move_on_after(0.5):
            await line.put("a", [b"x"])
        with pytest.raises(KeyError):
            bucket._objects["a"]
        await trio.sleep(5.0)
        assert bytes((await bucket.get("a")).data) == b"x"


async def test_a_suspended_sender_finds_the_outcome_of_its_put_after_resuming(
    autojump_clock: MockClock, bucket: MemoryStore
) -> None:
    async with trio.open_nursery() as nursery:
        line = line_to(bucket, nursery)
        line.network_seconds = 10.0  # as long as it does not go on

        async def put() -> None:
            with pytest.raises(PreconditionFailed):
                await line.put_if_absent("a", [b"second"])

        await bucket.put("a", [b"first"])
        nursery.start_soon(put)
        await trio.sleep(0.1)
        line.abandon()
        await trio.sleep(6.0)
        await bucket.delete(["a"])  # it was refused before, and is not tried again
        await trio.sleep(5.0)
        assert "a" not in bucket._objects


async def test_a_straggler_is_lost_for_its_sender_and_takes_effect_later(
    autojump_clock: MockClock, bucket: MemoryStore
) -> None:
    async with trio.open_nursery() as nursery:
        line = line_to(bucket, nursery)
        line.straggler_probability = 1.0
        with pytest.raises(StoreUnavailable):
            await line.put("a", [b"x"])
        await trio.sleep(STRAGGLER_MAX_SECONDS)
        assert bytes((await bucket.get("a")).data) == b"x"


async def test_segment_uploads_and_reads_take_additional_time(autojump_clock: MockClock, bucket: MemoryStore) -> None:
    async with trio.open_nursery() as nursery:
        line = line_to(bucket, nursery)
        line.upload_max_seconds, line.read_max_seconds = 10.0, 2.0
        began = trio.current_time()
        await line.put("a", [b"x"])
        assert trio.current_time() == began + line.network_seconds
        await line.put("a.kfs", [b"x"])
        uploaded = trio.current_time()
        assert began + 2 * line.network_seconds < uploaded <= began + 2 * line.network_seconds + 10.0
        assert bytes((await line.get("a")).data) == b"x"
        assert uploaded < trio.current_time() <= uploaded + 2.0
