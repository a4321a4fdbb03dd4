"""What a broker reads of another one's stream, while that is deleted behind it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.errors import StoreUnavailable
from kafscale.formats.wal_entries import WalEntry
from kafscale.log.wal.s3_wal import S3Wal
from kafscale.log.wal.streams import LOOK_BACK_SECONDS, Contents, FollowedStream
from kafscale.store.base import ForwardingStore
from kafscale.store.memory import MemoryStore
from kafscale.wire.records import Record, build_batch
from tests.log.wal.test_streams import STREAM, TOPIC, start

SEEDS = (2, 12)  # of those by which a deletion is found that begins with others, or goes on behind one that failed
SECONDS = 600.0
BATCH = build_batch([Record(value=b"v", timestamp_ms=1)])


@attrs.define(eq=False)
class AnyOrderStore(ForwardingStore):
    """Deletes the objects of a request one after the other, in any order, and sometimes only some of them."""

    random: random.Random

    async def delete(self, keys: Sequence[str]) -> None:
        for key in self.random.sample(list(keys), len(keys)):
            await trio.sleep(self.random.choice((0.0, 0.01, 0.05)))
            await self.store.delete([key])
            if self.random.random() < 0.01:
                raise StoreUnavailable("some are deleted")


def follow(store: ForwardingStore, lost: list[int]) -> FollowedStream:
    return FollowedStream(
        store=store,
        namespace="default",
        incarnation=STREAM,
        contents=Contents(1 << 20, on_evicted=lambda followed: None),
        on_object=lambda followed: None,
        on_lost=lambda stream: lost.append(stream.next_number),
    )


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_follower_gets_all_acknowledged_entries_despite_deletions(autojump_clock: MockClock, seed: int) -> None:
    """Where the next object had been deleted, and the last one not yet, there was nothing more to it."""
    chance = random.Random(seed)
    lost: list[int] = []
    store = AnyOrderStore(MemoryStore(), chance)
    stream = follow(store, lost)
    unflushed: list[WalEntry] = []

    async def write_all(wal: S3Wal) -> None:
        while True:
            for offset in range(chance.randrange(30)):
                entry = WalEntry(TOPIC, 0, wal.epoch, offset, BATCH)
                await wal.append(entry).wait()
                unflushed.append(entry)
            await trio.sleep(chance.uniform(0, 10))

    async with trio.open_nursery() as nursery:
        wal = await start(store, nursery)
        nursery.start_soon(write_all, wal)
        while trio.current_time() < SECONDS:
            await trio.sleep(chance.choice((0.1, 2.0, LOOK_BACK_SECONDS, 20.0, 60.0)))
            if chance.random() < 0.8:
                flushed = unflushed[: max(0, len(unflushed) - chance.randrange(10))]
                del unflushed[: len(flushed)]
                for entry in flushed:
                    assert entry.file is not None
                    wal.release(entry.file)
            await trio.sleep(chance.choice((0.0, 0.5, 2.0, 10.0)))
            acknowledged = wal.durable_position.number
            await stream.catch_up()
            assert stream.next_number > acknowledged
        nursery.cancel_scope.cancel()
    assert lost
