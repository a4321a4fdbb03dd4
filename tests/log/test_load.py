from __future__ import annotations

import trio
import trio.testing
from trio.testing import MockClock

from kafscale.log.hand_over import release_partition
from kafscale.log.load import MATURE_SECONDS, SAMPLE_SECONDS, TOLD_MOST_COUNT, LoadMeter
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from tests.devtools.fakes.memory_log import TOPIC_ID, MemoryLog, memory_log, topic_spec

ENOUGH_SECONDS = 600.0
BATCH = b"x" * 100_000


async def write(log: MemoryLog, index: int, seconds: float, every_seconds: float = 1.0) -> None:
    """Append a batch every so often for that long."""
    with trio.move_on_after(seconds):
        while True:
            await log.append(log.partition(index), BATCH)
            await trio.sleep(every_seconds)


async def test_the_load_meter_reports_a_lasting_load_and_forgets_a_past_load(autojump_clock: MockClock) -> None:
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(3)]) as log, trio.open_nursery() as nursery:
        meter = LoadMeter(partitions=log.log.partitions.values)
        nursery.start_soon(meter.run)
        await write(log, 1, 60.0)
        load = meter.load()
        assert list(load.busiest) == [(TOPIC_ID, 1)]
        assert 90_000 < load.busiest[TOPIC_ID, 1] < 110_000
        assert (load.others_count, load.others_bytes_per_second) == (2, 0)
        await trio.sleep(60.0)  # half of it is forgotten, and it was there for half of the time
        assert 25_000 < meter.load().bytes_per_second < 45_000
        await trio.sleep(1200.0)
        assert meter.load().bytes_per_second == 0
        assert not meter._averages
        nursery.cancel_scope.cancel()


async def test_reads_count_like_writes(autojump_clock: MockClock) -> None:
    async with memory_log(MemoryStore(), MemoryDisk()) as log, trio.open_nursery() as nursery:
        meter = LoadMeter(partitions=log.log.partitions.values)
        nursery.start_soon(meter.run)
        await trio.sleep(ENOUGH_SECONDS)
        log.partition().recent_bytes += 1_000_000  # as a fetch does
        await trio.sleep(SAMPLE_SECONDS + 0.1)
        assert meter.load().bytes_per_second > 5_000
        nursery.cancel_scope.cancel()


async def test_a_newly_opened_partition_counts_after_being_measured(autojump_clock: MockClock) -> None:
    async with memory_log(MemoryStore(), MemoryDisk()) as log, trio.open_nursery() as nursery:
        meter = LoadMeter(partitions=log.log.partitions.values)
        nursery.start_soon(meter.run)
        await write(log, 0, MATURE_SECONDS - 1.0)
        assert meter.load().bytes_per_second == 0
        await write(log, 0, SAMPLE_SECONDS + 1.5)
        assert 90_000 < meter.load().bytes_per_second < 110_000  # not a fifth, as the average begins with nothing
        nursery.cancel_scope.cancel()


async def test_a_broker_that_leads_partitions_at_start_settles_its_load_first(autojump_clock: MockClock) -> None:
    async with memory_log(MemoryStore(), MemoryDisk()) as log, trio.open_nursery() as nursery:
        empty, full = LoadMeter(), LoadMeter(partitions=log.log.partitions.values)
        assert not empty.load().is_settled
        nursery.start_soon(empty.run)
        nursery.start_soon(full.run)
        await trio.testing.wait_all_tasks_blocked()
        assert empty.load().is_settled
        assert not full.load().is_settled
        empty.partitions = log.log.partitions.values  # what comes later, others have measured
        await trio.sleep(MATURE_SECONDS - 1.0)
        assert (empty.load().is_settled, full.load().is_settled) == (True, False)
        await trio.sleep(SAMPLE_SECONDS + 1.0)
        assert full.load().is_settled
        nursery.cancel_scope.cancel()


async def test_a_partition_that_moved_away_has_no_load(autojump_clock: MockClock) -> None:
    async with memory_log(MemoryStore(), MemoryDisk()) as log, trio.open_nursery() as nursery:
        meter = LoadMeter(partitions=log.log.partitions.values)
        nursery.start_soon(meter.run)
        await write(log, 0, 60.0)
        await release_partition(log.log, log.partition())
        await trio.sleep(SAMPLE_SECONDS)
        assert (meter.load().bytes_per_second, meter.load().others_count) == (0, 0)
        nursery.cancel_scope.cancel()


async def test_the_load_lists_a_limited_number_of_busiest_partitions(autojump_clock: MockClock) -> None:
    count = TOLD_MOST_COUNT + 100
    async with memory_log(MemoryStore(), MemoryDisk(), topics=[topic_spec(count)]) as log:
        meter = LoadMeter(partitions=log.log.partitions.values)
        await trio.sleep(ENOUGH_SECONDS)
        for index in range(count):
            log.partition(index).recent_bytes = 60_000_000 + 60_000 * index
        await meter.sample()
        load = meter.load()
        assert set(load.busiest) == {(TOPIC_ID, index) for index in range(100, count)}
        assert load.others_count == 100
        assert 0 < load.of_others < min(load.busiest.values())
