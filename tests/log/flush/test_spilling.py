"""A bucket that fails or hangs for minutes: it costs disk and not memory, and afterwards everything catches up."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.config.limits import Limits
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire.batch_header import parse_header
from tests.devtools.fakes.memory_log import TOPIC, MemoryLog, append_nowait, batch_of, memory_log, topic_spec

KFS = On("put*", "*.kfs")
PARTITIONS_COUNT = 4
SIZE_BYTES = 50_000
POOL_BYTES = 2 << 20
SETTINGS = {
    "topics": [topic_spec(PARTITIONS_COUNT)],
    "chunk_pool_bytes": POOL_BYTES,
    "segment_bytes": 256 << 10,
    "limits": Limits(max_message_bytes=1 << 19),
}


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


async def produce(log: MemoryLog, number: int) -> float:
    """One batch, as a connection does it: waits for the pool if need be. Returns how long that took."""
    partition = log.partition(number % PARTITIONS_COUNT)
    data = batch_of(value_of(number))
    began = trio.current_time()
    placed = partition.place_nowait(data)
    while placed is None:
        with trio.fail_after(60):
            (await log.log.pool.acquire(len(data))).release()
        placed = partition.place_nowait(data)
    partition.append(parse_header(data), placed, 0)
    assert partition.latest_round is not None
    await partition.latest_round.wait()
    return trio.current_time() - began


def value_of(number: int) -> bytes:
    return b"%d" % number + bytes(SIZE_BYTES)


async def everything(log: MemoryLog) -> list[bytes]:
    found: list[bytes] = []
    for index in range(PARTITIONS_COUNT):
        found += [value or b"" for value in await log.values(log.partition(index), max_bytes=200_000)]
    return found


@pytest.mark.parametrize("outage", ["fails", "hangs"])
async def test_an_outage_of_minutes_costs_disk_and_not_memory(autojump_clock, store, outage):
    gate = store.hold(KFS) if outage == "hangs" else None
    if outage == "fails":
        store.fail(KFS)
    async with memory_log(store, MemoryDisk(), **SETTINGS) as log:
        numbers = range(400)  # 20 MB into a pool of 2
        slowest = 0.0
        for number in numbers:
            slowest = max(slowest, await produce(log, number))
            await trio.sleep(0.5)
        assert slowest < 1.0
        spilled_bytes = log.log.spiller.spilled_bytes.value
        assert spilled_bytes > 5 * POOL_BYTES
        found = {value[:10] for value in await everything(log)}
        assert found == {value_of(number)[:10] for number in numbers}
        store.heal()
        if gate is not None:
            gate.open()
        with trio.fail_after(120):
            await log.log.flusher.flush_all()
        flushed = [partition.flushed_offset for partition in log.log.by_name[TOPIC]]
        assert flushed == [100] * PARTITIONS_COUNT
        found = await everything(log) == [
            value_of(number) for index in range(PARTITIONS_COUNT) for number in numbers if number % 4 == index
        ]
        assert found
        left = log.log.pool.used_bytes, log.log.journal.pending_count
        assert left == (0, 0)


async def test_uploads_that_hang_keep_no_more_than_half_of_the_pool(autojump_clock, store, monkeypatch):
    monkeypatch.setattr("kafscale.log.partition.partition.CHUNK_GROWTH_MAX_BYTES", 64 << 10)
    store.hold(KFS)
    async with memory_log(store, MemoryDisk(), **SETTINGS) as log:
        for number in range(200):
            await produce(log, number)
        await trio.sleep(60)
        for index in range(PARTITIONS_COUNT):
            log.partition(index).spill()
        held_bytes = log.log.pool.used_bytes
        assert 0 < held_bytes <= POOL_BYTES // 2


async def test_nothing_is_spilled_while_flushes_keep_up(autojump_clock, store):
    store.delay(KFS, 0.1)
    async with memory_log(store, MemoryDisk(), **SETTINGS) as log:
        for number in range(400):
            await produce(log, number)
            await trio.sleep(0.02)
        spilled_bytes = log.log.spiller.spilled_bytes.value
        assert spilled_bytes == 0


async def test_producers_faster_than_flushes_wait_and_nothing_is_spilled(autojump_clock, store):
    """What was spilled had to be read back, so flushes fell behind for good, until the log was full."""
    store.delay(KFS, 0.4)
    async with memory_log(store, MemoryDisk(), **SETTINGS) as log, trio.open_nursery() as nursery:

        async def produce_many(first_number: int) -> None:
            for number in range(first_number, first_number + 400, PARTITIONS_COUNT):
                await produce(log, number)

        for number in range(PARTITIONS_COUNT):
            nursery.start_soon(produce_many, number)
        await trio.sleep(10)
        pool = log.log.pool
        found = pool.waiting_count > 0, log.log.spiller.spilled_bytes.value
        assert found == (True, 0)


async def test_a_stalled_store_makes_room_before_a_producer_waits(autojump_clock, store):
    store.hold(KFS)
    async with memory_log(store, MemoryDisk(), **SETTINGS) as log:
        slowest = 0.0
        for number in range(200):
            slowest = max(slowest, await produce(log, number))
            await trio.sleep(0.3)
        assert slowest == 0.0
        spilled_bytes = log.log.spiller.spilled_bytes.value
        assert spilled_bytes > POOL_BYTES


async def test_after_an_outage_the_oldest_batches_are_flushed_first(autojump_clock, store):
    topics = [topic_spec(40)]
    settings = SETTINGS | {"topics": topics, "s3_concurrency": 4}
    store.fail(KFS)
    async with memory_log(store, MemoryDisk(), **settings) as log:
        order = [(7 * index) % 40 for index in range(40)]
        for index in order:
            append_nowait(log.partition(index), bytes(30_000))
            await trio.sleep(3)
        await trio.sleep(60)
        store.heal()
        store.delay(KFS, 1.0)
        store.calls.clear()
        await log.log.flusher.flush_all()
        keys = [call.keys[0] for call in store.calls if call.operation == "put_if_absent" and "kfs" in call.keys[0]]
        assert [int(key.split("/")[3]) for key in keys][1:] == order[1:]  # one was being tried when the store came back


async def test_a_backlog_of_flushes_leaves_half_of_the_store_tokens_to_fetches(autojump_clock, store):
    running = most = 0

    async def upload(call) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1

    store.rule(On("put*"), upload)
    topics = [topic_spec(100)]
    async with memory_log(store, MemoryDisk(), **(SETTINGS | {"topics": topics, "s3_concurrency": 16})) as log:
        for index in range(100):
            await log.append(log.partition(index), b"a")
        await log.log.flusher.flush_all()
    assert most == 8


async def test_flushes_that_read_back_hold_little_memory_together(autojump_clock, store, monkeypatch):
    monkeypatch.setattr("kafscale.log.flush.upload.READ_BACK_MAX_BYTES", 2 * SIZE_BYTES + 1000)
    store.hold(KFS)
    async with memory_log(store, MemoryDisk(), **SETTINGS) as log:
        for number in range(PARTITIONS_COUNT):
            await produce(log, number)
            log.partition(number).spill()
        await trio.sleep(11)
        await wait_all_tasks_blocked()
        assert store.count("put_if_absent", "*.kfs") == 2


async def test_a_topic_can_be_deleted_while_its_flush_waits_to_read_back(autojump_clock, store, monkeypatch):
    """The flush used to go on with batches that had been released."""
    monkeypatch.setattr("kafscale.log.flush.upload.READ_BACK_MAX_BYTES", SIZE_BYTES)
    gate = store.hold(KFS)
    async with memory_log(store, MemoryDisk(), **SETTINGS) as log:
        for number in range(PARTITIONS_COUNT):
            await produce(log, number)
            log.partition(number).spill()
        await trio.sleep(11)
        log.log.close_topic(TOPIC)
        gate.open()
        await wait_all_tasks_blocked()
        left = len(log.log.flusher._flushing), log.log.pool.used_bytes, log.log.journal.pending_count
        assert left == (0, 0, 0)


class SpilledPerStep(trio.abc.Instrument):
    """The most batches of a partition that were spilled before another task could run."""

    def __init__(self, partition) -> None:
        self.partition = partition
        self.most = self.spilled_count = 0

    def after_task_step(self, task) -> None:
        before, self.spilled_count = self.spilled_count, sum(b.lease is None for b in self.partition.tail.batches)
        self.most = max(self.most, self.spilled_count - before)


async def test_many_small_batches_are_spilled_in_slices(autojump_clock, store, monkeypatch):
    """250,000 batches of one partition used to hold everybody up for a fifth of a second."""
    monkeypatch.setattr("kafscale.log.flush.flusher.SPILLED_AT_ONCE_COUNT", 10)
    store.hold(KFS)
    async with memory_log(store, MemoryDisk(), **SETTINGS) as log:
        partition = log.partition()
        for _ in range(200):
            log.append_nowait(partition, b"x")
        await log.append(partition, b"x")
        steps = SpilledPerStep(partition)
        trio.lowlevel.add_instrument(steps)
        held = log.log.pool.acquire_nowait(POOL_BYTES * 3 // 4)
        await trio.sleep(5)
        trio.lowlevel.remove_instrument(steps)
        held.release()
        assert steps.spilled_count == 201
        assert steps.most == 10
