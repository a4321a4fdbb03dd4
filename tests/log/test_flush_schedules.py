"""Flushes of one partition, whatever comes when: never two of its uploads under way, segments committed in order.

A schedule is what comes, and in which order: batches, time, a flush on demand, pressure, uploads that fail, take long,
or lose their replies. FLUSH_SCHEDULES says how many are tried for each mode of durability.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from random import Random

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from kafscale.buffers import Buffer
from kafscale.config import Durability
from kafscale.errors import StoreUnavailable
from kafscale.log.flush.upload import Uploader
from kafscale.store.base import ForwardingStore
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey, parse_segment_key
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from tests.devtools.fakes.memory_log import MemoryLog, memory_log, topic_spec

SCHEDULES_COUNT = int(os.environ.get("FLUSH_SCHEDULES", "40"))
PARTITIONS_COUNT = 2
UPLOADS = On("put*")
SETTLE_SECONDS = 600.0

appends = st.tuples(st.just("append"), st.integers(0, PARTITIONS_COUNT - 1), st.sampled_from([10, 300, 1500]))
others = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.01, 0.3, 1.0, 6.0])),
    st.tuples(st.just("flush")),
    st.tuples(st.just("pressure")),
    st.tuples(st.just("fail"), st.integers(1, 3)),
    st.tuples(st.just("lose_reply"), st.integers(1, 2)),
    st.tuples(st.just("slow"), st.sampled_from([0.0, 0.2, 2.0])),
)
schedules = st.lists(st.tuples(appends, others), min_size=8, max_size=30)  # a batch, and something else


@attrs.define(eq=False, repr=False)
class WatchedUploads(ForwardingStore):
    """Looks at each upload of a segment when it begins. `broken`: what must not be."""

    log: MemoryLog | None = None
    under_way: list[str] = attrs.field(factory=list, init=False)
    broken: list[str] = attrs.field(factory=list, init=False)
    count: int = attrs.field(default=0, init=False)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> str:
        began = parse_segment_key(key)
        if began is None:  # an object of the write-ahead log
            return await self.store.put_if_absent(key, parts)
        self._look(began)
        self.under_way.append(key)
        self.count += 1
        try:
            return await self.store.put_if_absent(key, parts)
        finally:
            self.under_way.remove(key)

    def _look(self, began: SegmentKey) -> None:
        assert self.log is not None
        for other in map(parse_segment_key, self.under_way):
            assert other is not None
            same_pair = other.base_offset == began.base_offset and other.kind != began.kind
            if other.partition == began.partition and not same_pair:
                self.broken.append(f"{began.key} while {other.key} is uploaded")
        flushed_offset = self.log.partition(began.partition).flushed_offset
        if began.base_offset != flushed_offset:
            self.broken.append(f"{began.key} begins while only what is below {flushed_offset} is committed")


async def follow(schedule: Sequence[tuple], durability: Durability) -> WatchedUploads:
    """Do what the schedule says, let everything settle, and look at the segments."""
    faulty = FaultyStore(MemoryStore(), Random(0))
    watched = WatchedUploads(faulty)
    topics = [topic_spec(PARTITIONS_COUNT)]
    chosen = {"durability": durability, "segment_bytes": 1024, "flush_interval_seconds": 0.5}
    async with memory_log(watched, MemoryDisk(sync_seconds=0.005), topics=topics, **chosen) as log:
        watched.log = log
        async with trio.open_nursery() as nursery:
            for step in schedule:
                await take(step, log, faulty, nursery)
            faulty.heal()
            with trio.fail_after(SETTLE_SECONDS):
                while log.log.tail_bytes():
                    await log.log.flusher.flush_all()
                    await trio.sleep(1)
        for partition in log.log.partitions.values():
            ends = [0, *(segment.last_offset + 1 for segment in partition.manifest.segments)]
            assert [segment.base_offset for segment in partition.manifest.segments] == ends[:-1]
            assert ends[-1] == partition.next_offset
    return watched


async def take(step: tuple, log: MemoryLog, faulty: FaultyStore, nursery: trio.Nursery) -> None:
    match step:
        case "append", index, size:
            log.append_nowait(log.partition(index), bytes(size))
        case "wait", seconds:
            await trio.sleep(seconds)
        case ("flush",):
            nursery.start_soon(log.log.flusher.flush_all)
        case ("pressure",):
            log.log.flusher.relieve()
        case "fail", times:
            faulty.fail(attrs.evolve(UPLOADS, times=times))
        case "lose_reply", times:
            faulty.lose_reply(attrs.evolve(UPLOADS, times=times), StoreUnavailable)
        case "slow", seconds:
            faulty.heal()
            faulty.delay(UPLOADS, seconds / 2, jitter_seconds=seconds)
        case "double_flush", index:
            nursery.start_soon(flush_beside, log, index)


async def flush_beside(log: MemoryLog, index: int) -> None:
    """What nobody may do: upload without a look at the flusher."""
    uploader = log.log.flusher.uploader
    beside = Uncommitted(store=uploader.store, reader=uploader.reader)
    plan = log.partition(index).prepare_flush()
    assert plan is not None
    await beside.flush(log.partition(index), plan)


class Uncommitted(Uploader):
    """Tells the partition nothing, which would stop at a second flush of the same batches."""

    def _commit(self, *_: object) -> None: ...


def run(schedule: Sequence[tuple], durability: Durability) -> WatchedUploads:
    return trio.run(follow, schedule, durability, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("durability", list(Durability))
def test_one_upload_of_a_partition_at_a_time_and_segments_in_order(durability, record_property):
    counts = {"schedules": 0, "uploads": 0}

    @settings(max_examples=SCHEDULES_COUNT, deadline=None)
    @given(schedules)
    def hold(pairs: Sequence[tuple[tuple, tuple]]) -> None:
        watched = run(list(chain.from_iterable(pairs)), durability)
        assert watched.broken == []
        counts["schedules"] += 1
        counts["uploads"] += watched.count

    hold()
    assert counts["uploads"] > counts["schedules"]  # otherwise nothing was tried
    for name, count in counts.items():
        record_property(name, count)


def test_an_upload_beside_that_of_the_flusher_is_seen():
    schedule = [("slow", 2.0), ("append", 0, 1500), ("wait", 0.3), ("append", 0, 10), ("wait", 0.3)]
    assert run(schedule, Durability.WAL).broken == []
    assert run([*schedule, ("double_flush", 0)], Durability.WAL).broken != []
