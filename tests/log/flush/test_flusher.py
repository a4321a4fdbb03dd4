"""When which partition is flushed: by age, size, pressure and demand, one flush at a time, again after a failure."""

import logging

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.config import Durability
from kafscale.config.limits import Limits
from kafscale.errors import Fenced, StoreUnavailable
from kafscale.log.flush.flusher import FAILED_FLUSH_PAUSE_SECONDS
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.error_codes import NOT_LEADER_OR_FOLLOWER
from tests.devtools.fakes.memory_log import TOPIC, TOPIC_ID, MemoryLog, batch_of, memory_log, topic_spec

INTERVAL = 10.0
KFS = On("put*", "*.kfs")
MANY = [topic_spec(8)]
NEVER = {"flush_interval_seconds": 1e9}
SMALL_POOL = {"chunk_pool_bytes": 1 << 20, "limits": Limits(max_message_bytes=1 << 19), **NEVER}


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


def flushed(log: MemoryLog) -> list[int]:
    return [partition.flushed_offset for partition in log.log.by_name[TOPIC]]


def uploads(store: FaultyStore) -> list[int]:
    """The partitions that were uploaded, in that order."""
    kfs = (call.keys[0] for call in store.calls if call.operation == "put_if_absent" and call.keys[0].endswith("kfs"))
    return [int(key.split("/")[3]) for key in kfs]


async def test_a_tail_is_flushed_after_the_flush_interval(autojump_clock, store):
    async with memory_log(store, MemoryDisk(), topics=MANY) as log:
        began = trio.current_time()
        await log.append(log.partition(0), b"a")
        await trio.sleep(4)
        await log.append(log.partition(1), b"a")
        await log.append(log.partition(0), b"b")
        await trio.sleep_until(began + INTERVAL - 0.1)
        assert flushed(log)[:2] == [0, 0]
        await trio.sleep_until(began + INTERVAL + 0.1)
        assert flushed(log)[:2] == [2, 0]
        assert log.log.flusher.oldest_seconds() == pytest.approx(INTERVAL + 0.1 - 4)
        await trio.sleep_until(began + INTERVAL + 4.1)
        assert flushed(log)[:2] == [2, 1]
        assert log.log.flusher.oldest_seconds() == 0


async def test_records_appended_during_a_flush_wait_for_their_own_interval(autojump_clock, store):
    store.delay(KFS, 5.0)
    async with memory_log(store, MemoryDisk(), topics=MANY) as log:
        began = trio.current_time()
        await log.append(log.partition(0), b"a")
        await trio.sleep_until(began + 12)
        await log.append(log.partition(0), b"b")
        await trio.sleep_until(began + 24.9)
        assert uploads(store) == [0]
        await trio.sleep_until(began + 31)
        assert flushed(log)[0] == 2
        assert uploads(store) == [0, 0]


async def test_the_order_of_ages_holds_over_flushes_that_are_under_way(autojump_clock, store):
    """A partition that grew to a segment while it was flushed used to hold back those that were due before it."""
    store.delay(On("put*", "*/0/*.kfs"), 8.0)
    size = len(batch_of(b"a"))
    async with memory_log(store, MemoryDisk(), topics=MANY, segment_bytes=1024) as log:
        began = trio.current_time()
        await log.append(log.partition(0), bytes(1024))
        await trio.sleep(1)
        while log.partition(0).flushable_bytes < 3 * 1024:
            await log.append(log.partition(0), b"a")
        await log.append(log.partition(1), b"a")
        await trio.sleep_until(began + 1 + INTERVAL + 0.5)
        assert flushed(log)[1] == 1
        assert log.partition(0).flushable_bytes > size


async def test_a_tail_as_large_as_a_segment_is_flushed_at_once(autojump_clock, store):
    async with memory_log(store, MemoryDisk(), topics=MANY, segment_bytes=1024) as log:
        began = trio.current_time()
        await log.append(log.partition(2), bytes(500))
        await log.append(log.partition(1), bytes(900))
        await wait_all_tasks_blocked()
        assert flushed(log)[:3] == [0, 0, 0]
        await log.append(log.partition(2), bytes(500))
        await wait_all_tasks_blocked()
        assert flushed(log)[:3] == [0, 0, 1]
        assert log.partition(2).flushable_bytes < 1024
        assert trio.current_time() - began < 0.1


async def test_nothing_runs_while_nothing_of_a_full_tail_is_durable(autojump_clock, store):
    disk = MemoryDisk(sync_seconds=3600.0)
    async with memory_log(store, disk, segment_bytes=1024) as log:
        log.append_nowait(log.partition(), bytes(5000))
        await wait_all_tasks_blocked()
        with trio.fail_after(1):
            await log.log.flusher.flush_all()
        assert not log.log.flusher._waiting
        assert uploads(store) == []
        await trio.sleep(3601)
        assert flushed(log) == [1]


async def test_under_pressure_the_largest_tails_are_flushed_until_half_is_under_way(autojump_clock, store):
    async with memory_log(store, MemoryDisk(), topics=MANY, **SMALL_POOL) as log:
        for index, size in enumerate((10_000, 280_000, 150_000, 5_000, 230_000, 20_000)):
            await log.append(log.partition(index), bytes(size))
        assert uploads(store) == []
        await log.append(log.partition(6), bytes(100_000))
        await wait_all_tasks_blocked()
        assert sorted(uploads(store)) == [1, 4]  # two tasks that begin at once: either may upload first


async def test_flushes_under_way_count_toward_relieving_memory_pressure(autojump_clock, store):
    store.delay(KFS, 5.0)
    async with memory_log(store, MemoryDisk(), topics=MANY, **SMALL_POOL) as log:
        for index, size in enumerate((10_000, 280_000, 150_000, 5_000, 230_000, 20_000, 100_000)):
            await log.append(log.partition(index), bytes(size))
        await wait_all_tasks_blocked()
        before = {partition.index for partition in log.log.flusher._waiting}
        log.log.flusher.relieve()
        await wait_all_tasks_blocked()
        assert {partition.index for partition in log.log.flusher._waiting} == before == {0, 2, 3, 5, 6}


async def test_a_producer_waiting_for_memory_gets_memory_from_a_flush(autojump_clock, store):
    async with memory_log(store, MemoryDisk(), topics=MANY, **SMALL_POOL) as log:
        store.fail(On("put*", "*.kfs", times=4))
        for index in range(8):
            await log.append(log.partition(index), bytes(120_000))
        with trio.fail_after(60):
            (await log.log.pool.acquire(900_000)).release()


async def test_partitions_that_hold_nothing_of_the_pool_do_not_count_as_large(autojump_clock, store):
    async with memory_log(store, MemoryDisk(), topics=MANY, **SMALL_POOL) as log:
        await log.append(log.partition(0), bytes(500_000))
        log.partition(0).spill()
        for index in range(1, 8):
            await log.append(log.partition(index), bytes(120_000))
        await wait_all_tasks_blocked()
        assert 0 not in uploads(store)
        assert len(uploads(store)) == 4


async def test_many_small_tails_count_with_the_chunks_that_they_hold(autojump_clock, store):
    topics = [topic_spec(100)]
    async with memory_log(store, MemoryDisk(), topics=topics, **SMALL_POOL) as log:
        for index in range(48):
            await log.append(log.partition(index), b"a")
        await wait_all_tasks_blocked()
        assert len(uploads(store)) == 24


async def test_under_segment_durability_flushes_start_at_once_one_after_another(autojump_clock, store):
    store.delay(KFS, 1.0)
    async with memory_log(store, MemoryDisk(), topics=MANY, durability=Durability.SEGMENT) as log:
        began = trio.current_time()
        partition = log.partition()
        _, first = log.append_nowait(partition, b"a")
        await trio.sleep(0.5)
        later = [log.append_nowait(partition, b"b")[1] for _ in range(5)]
        await first.wait()
        assert trio.current_time() - began == 1.0
        assert not any(each.done for each in later)
        for each in later:
            await each.wait()
        assert trio.current_time() - began == 2.0
        assert uploads(store) == [0, 0]


async def test_there_is_one_flush_at_a_time_per_partition_and_partitions_do_not_wait_for_each_other(
    autojump_clock, store
):
    running: set[str] = set()
    most = 0

    async def upload(call) -> None:
        nonlocal most
        assert call.keys[0][:40] not in running
        running.add(call.keys[0][:40])
        most = max(most, len(running))
        await trio.sleep(3)
        running.discard(call.keys[0][:40])

    store.rule(KFS, upload)
    async with memory_log(store, MemoryDisk(), topics=MANY, segment_bytes=1024) as log:
        for _ in range(10):
            for index in range(4):
                await log.append(log.partition(index), bytes(1024))
            await trio.sleep(1)
        await log.log.flusher.flush_all()
        assert flushed(log)[:4] == [10] * 4
    assert most == 4


async def test_a_flush_that_failed_is_tried_again_after_a_pause(autojump_clock, store, caplog):
    store.fail(On("put*", "*.kfs", times=2), StoreUnavailable)
    async with memory_log(store, MemoryDisk()) as log:
        await log.append(log.partition(), b"a")
        await trio.sleep(INTERVAL + 2 * FAILED_FLUSH_PAUSE_SECONDS - 0.1)
        assert log.log.flusher.oldest_seconds() == pytest.approx(INTERVAL + 2 * FAILED_FLUSH_PAUSE_SECONDS - 0.1)
        assert flushed(log) == [0]
        assert await log.values(log.partition()) == [b"a"]
        await trio.sleep(0.2)
        assert flushed(log) == [1]
        assert log.log.flusher.failed_count.value == 2
    assert [record.levelno for record in caplog.records if "is tried again" in record.message] == [logging.ERROR] * 2


async def test_flush_all_waits_for_existing_records_and_not_for_later_records(autojump_clock, store):
    store.delay(KFS, 2.0)
    async with (
        memory_log(store, MemoryDisk(), topics=MANY, segment_bytes=2048, **NEVER) as log,
        trio.open_nursery() as n,
    ):
        for index in range(4):
            for _ in range(5):
                await log.append(log.partition(index), bytes(1000))

        async def keep_producing() -> None:
            while True:
                await log.append(log.partition(0), bytes(1000))
                await trio.sleep(0.1)

        n.start_soon(keep_producing)
        with trio.fail_after(20):
            await log.log.flusher.flush_all()
        assert flushed(log)[1:4] == [5, 5, 5]
        assert flushed(log)[0] >= 5
        n.cancel_scope.cancel()


async def test_two_calls_of_flush_all_can_overlap(autojump_clock, store):
    store.delay(KFS, 2.0)
    async with memory_log(store, MemoryDisk(), topics=MANY, **NEVER) as log, trio.open_nursery() as nursery:
        await log.append(log.partition(0), b"a")
        nursery.start_soon(log.log.flusher.flush_all)
        await trio.sleep(1)
        await log.append(log.partition(0), b"b")
        await log.append(log.partition(1), b"b")
        with trio.fail_after(10):
            await log.log.flusher.flush_all()
        assert flushed(log)[:2] == [2, 1]


async def test_flush_all_tries_until_the_store_is_back(autojump_clock, store):
    store.fail(KFS)
    async with memory_log(store, MemoryDisk(), **NEVER) as log:
        await log.append(log.partition(), b"a")
        with trio.move_on_after(60) as limit:
            await log.log.flusher.flush_all()
        assert limit.cancelled_caught
        store.heal()
        await log.log.flusher.flush_all()
        assert flushed(log) == [1]


@pytest.mark.parametrize("state", ["waiting", "flushing", "failed"])
async def test_flush_all_does_not_wait_for_a_closed_partition(autojump_clock, store, state):
    gate = store.hold(KFS)
    if state == "failed":
        store.fail(KFS)
    async with memory_log(store, MemoryDisk(), **NEVER) as log, trio.open_nursery() as nursery:
        await log.append(log.partition(), b"a")
        if state != "waiting":
            nursery.start_soon(log.log.flusher.flush_all)
            await gate.wait_arrived(1)
        log.log.close_topic(TOPIC)
        gate.open()
        with trio.fail_after(FAILED_FLUSH_PAUSE_SECONDS + 1):
            await log.log.flusher.flush_all()
            await log.log.flusher.wait_ended(TOPIC_ID)
        assert not log.log.flusher._flushing
        assert not log.log.flusher._waiting
        assert not log.log.flusher._due


async def test_waiters_of_an_unstarted_flush_learn_that_the_partition_was_closed(autojump_clock, store):
    """It went on waiting for as long as the upload of another partition took, in whose turn it was."""
    gate = store.hold(KFS)
    async with memory_log(store, MemoryDisk(), topics=MANY, **NEVER) as log, trio.open_nursery() as nursery:
        log.log.flusher.tasks_max_count = 1
        first, second = log.partition(0), log.partition(1)
        await log.append(first, b"a")
        await log.append(second, b"a")
        nursery.start_soon(log.log.flusher.flush, first)
        await gate.wait_arrived(1)

        async def close() -> None:
            await wait_all_tasks_blocked()
            log.log.close_partition(second, NOT_LEADER_OR_FOLLOWER)

        nursery.start_soon(close)
        with trio.fail_after(1):
            await log.log.flusher.flush(second)
        assert first.flushed_offset == 0
        gate.open()


async def test_an_idle_partition_costs_no_task_and_no_timer(autojump_clock, store):
    topics = [topic_spec(300)]
    async with memory_log(store, MemoryDisk(), topics=topics) as log:
        await wait_all_tasks_blocked()  # the log's own tasks may still start others
        idle = trio.lowlevel.current_statistics()
        for index in range(300):
            await log.append(log.partition(index), b"a")
        waiting = trio.lowlevel.current_statistics()
        assert waiting.tasks_living == idle.tasks_living
        await trio.sleep(INTERVAL + 1)
        assert flushed(log) == [1] * 300
        assert trio.lowlevel.current_statistics().tasks_living == idle.tasks_living
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")


async def test_being_fenced_ends_the_flusher_with_that_error_and_no_group(autojump_clock):
    async def superseded() -> None:
        await trio.lowlevel.checkpoint()
        raise Fenced("another broker has taken over")

    async with memory_log(MemoryStore(), MemoryDisk(), topics=MANY) as old:
        old.log.flusher.uploader.check_lead_first = superseded
        for index in range(3):
            await old.append(old.partition(index), b"b")
        flusher = old.log.flusher
        partitions = list(flusher._waiting)
        for partition in partitions:
            flusher.forget(partition)
        other = attrs.evolve(flusher, interval_seconds=1)
        for partition in partitions:
            other.mark(partition)
        with pytest.raises(Fenced):
            await other.run()
