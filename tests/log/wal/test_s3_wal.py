"""The log in the bucket: windows, order of acknowledgements, outages, fencing, deletion, and kills at every step."""

import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.errors import AccessDenied, DamagedObject, Fenced, StorageFailed, StoreUnavailable
from kafscale.formats.wal_entries import METADATA, WalEntry
from kafscale.formats.wal_objects import START, WalPosition
from kafscale.log.wal import s3_replay, s3_wal
from kafscale.log.wal.journal import Round
from kafscale.log.wal.s3_replay import take_over
from kafscale.log.wal.s3_wal import DELETE_RETRY_SECONDS, DELETION_PAUSE_SECONDS, S3Wal
from kafscale.store.guarded import DeletionGuard, GuardedStore
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import NumberedKey
from kafscale.testing.faulty_store import FaultyStore, On

TOPIC = bytes(range(16))
PUT = "put_if_absent"


class Log:
    """A broker's log of one epoch, and what it has told its owner."""

    def __init__(self, store, *, epoch: int = 0, **settings):
        self.store = store
        self.durable: list[int] = []
        self.groups: list[int] = []
        self.entries: list[WalEntry] = []
        self.wal = S3Wal(store=store, namespace="default", epoch=epoch, on_durable=self.on_durable, **settings)

    def on_durable(self, entries):
        self.entries += entries
        self.durable += [entry.base_offset for entry in entries]
        self.groups.append(len(entries))

    def append(self, offset: int, size: int = 100, *, partition: int = 3) -> Round:
        return self.wal.append(WalEntry(TOPIC, partition, self.wal.epoch, offset, content(offset, size)))

    def append_metadata(self) -> Round:
        return self.wal.append(WalEntry(bytes(16), -1, self.wal.epoch, 0, b"m", kind=METADATA))


def content(offset: int, size: int) -> bytes:
    return random.Random(offset).randbytes(size)


def key(number: int, *, epoch: int = 0) -> str:
    return NumberedKey(kind="wal", epoch=epoch, number=number).key


async def keys(store) -> list[str]:
    return [info.key async for page in store.list("") for info in page]


async def replayed(store, *, epoch: int = 99, kept_until: WalPosition = START) -> list[int]:
    """What a start of that epoch finds."""
    found: list[int] = []

    def handle(entry: WalEntry) -> bool:
        if entry.kind != METADATA:
            assert bytes(entry.data) == content(entry.base_offset, len(entry.data))
            found.append(entry.base_offset)
        return True

    await (await take_over(store, "default", epoch, kept_until=kept_until)).replay(handle)
    return found


async def test_an_entry_is_durable_and_reported_before_its_waiter_wakes(autojump_clock, nursery):
    log = Log(MemoryStore())
    await nursery.start(log.wal.run)
    round = log.append(0)
    assert (round.done, log.durable) == (False, [])
    await round.wait()
    assert round.done
    (entry,) = log.entries
    assert (entry.file.name, entry.file.pending_count) == (key(1), 1)
    assert await log.wal.read(entry.file, [(entry.position, 100)]) == content(0, 100)


async def test_the_first_entry_after_idle_does_not_wait_for_the_interval(autojump_clock, nursery):
    store = FaultyStore(MemoryStore())
    store.delay(On(PUT), 0.02)
    log = Log(store)
    await nursery.start(log.wal.run)
    for offset in range(3):
        began = trio.current_time()
        await log.append(offset).wait()
        assert trio.current_time() - began == pytest.approx(0.02)


async def test_entries_that_arrive_during_a_put_share_the_next(autojump_clock, nursery):
    store = FaultyStore(MemoryStore())
    store.delay(On(PUT), 0.02)
    log = Log(store)
    await nursery.start(log.wal.run)
    rounds = [log.append(0)]
    await wait_all_tasks_blocked()
    rounds += [log.append(offset, partition=offset) for offset in range(1, 50)]
    await rounds[-1].wait()
    assert log.groups == [1, 49]
    assert log.durable == list(range(50))


async def test_the_interval_bounds_the_wait_for_a_put_that_is_slow(autojump_clock, nursery):
    store = FaultyStore(MemoryStore())
    store.delay(On(PUT), 10.0)
    log = Log(store, interval_seconds=0.25)
    await nursery.start(log.wal.run)
    for number in range(4):
        log.append(number)
        await trio.sleep(0.1)
    await trio.sleep(0.1)
    assert (store.count(PUT), len(log.wal._under_way)) == (2, 2)
    await trio.sleep(10)
    assert log.groups == [1, 3]


async def test_a_least_interval_bounds_the_rate_of_puts_but_not_that_of_full_objects(autojump_clock, nursery):
    store = FaultyStore(MemoryStore())
    store.delay(On(PUT), 0.05)
    log = Log(store, min_interval_seconds=0.2, object_bytes=10_000)
    await nursery.start(log.wal.run)
    for offset in range(100):
        log.append(offset)
        await trio.sleep(0.02)
    await trio.sleep(0.2)
    assert store.count(PUT) == 11  # in 2 seconds; 40 would fit one behind the other
    await trio.sleep(10.0)
    assert store.count(PUT) == 11
    began = trio.current_time()
    await log.append(100).wait()
    assert trio.current_time() - began == pytest.approx(0.05)  # the first after a pause
    rounds = [log.append(offset, 6000) for offset in range(101, 106)]
    await rounds[-2].wait()
    assert trio.current_time() - began == pytest.approx(0.1)
    await rounds[-1].wait()
    assert trio.current_time() - began == pytest.approx(0.3)


async def test_an_object_is_sent_as_soon_as_full(autojump_clock, nursery):
    store = FaultyStore(MemoryStore())
    store.delay(On(PUT), 1.0)
    log = Log(store, object_bytes=1000)
    await nursery.start(log.wal.run)
    log.append(0)
    await wait_all_tasks_blocked()
    rounds = [log.append(offset, 300) for offset in range(1, 5)]
    await wait_all_tasks_blocked()
    assert store.count(PUT) == 2
    await rounds[-1].wait()
    assert log.groups == [1, 2, 2]


async def test_an_entry_larger_than_an_object_gets_a_separate_object(autojump_clock, nursery):
    log = Log(MemoryStore(), object_bytes=1000)
    await nursery.start(log.wal.run)
    await log.append(0, 5000).wait()
    assert await replayed(log.store) == [0]


async def test_the_number_of_puts_under_way_is_bounded(autojump_clock, nursery):
    store = FaultyStore(MemoryStore())
    gate = store.hold(On(PUT))
    log = Log(store, object_bytes=100)
    await nursery.start(log.wal.run)
    rounds = [log.append(offset) for offset in range(30)]
    await trio.sleep(10)
    assert store.count(PUT) == s3_wal.UNDER_WAY_MAX_COUNT
    gate.open()
    await rounds[-1].wait()
    assert log.durable == list(range(30))


async def test_objects_are_acknowledged_in_order_however_their_puts_end(autojump_clock, nursery):
    store = FaultyStore(MemoryStore())
    slow = store.hold(On(PUT, f"*{1:020d}.wal"), after_effect=True)
    log = Log(store, object_bytes=100)
    await nursery.start(log.wal.run)
    rounds = [log.append(offset) for offset in range(4)]
    await trio.sleep(1)
    assert (log.durable, [round.done for round in rounds]) == ([], [False] * 4)
    slow.open()
    await rounds[3].wait()
    assert log.durable == [0, 1, 2, 3]


async def test_acks_stay_in_order_over_random_latencies_and_failures(autojump_clock, nursery):
    store = FaultyStore(MemoryStore(), random.Random(5))
    store.delay(On(PUT), 0.0, jitter_seconds=0.3)
    store.fail(On(PUT, probability=0.2))
    store.lose_reply(On(PUT, probability=0.2))
    log = Log(store, object_bytes=250)
    await nursery.start(log.wal.run)
    seen: list[int] = []

    async def wait(offset: int, round: Round) -> None:
        await round.wait()
        assert offset in log.durable
        seen.append(offset)

    for offset in range(200):
        nursery.start_soon(wait, offset, log.append(offset))
        await trio.sleep(0.01)
    await log.wal.settle()
    await wait_all_tasks_blocked()
    assert log.durable == list(range(200))
    assert sorted(seen) == log.durable
    store.heal()
    assert await replayed(store) == list(range(200))


@pytest.mark.parametrize("error", [StoreUnavailable, AccessDenied])
async def test_produces_wait_out_an_outage_and_nothing_is_lost(autojump_clock, nursery, error):
    store = FaultyStore(MemoryStore())
    log = Log(store)
    await nursery.start(log.wal.run)
    await log.append(0).wait()
    store.fail(On(), error)
    rounds = [log.append(offset) for offset in range(1, 10)]
    await trio.sleep(3600)
    assert (log.durable, any(round.done for round in rounds)) == ([0], False)
    store.heal()
    await rounds[-1].wait()
    assert log.durable == list(range(10))


async def test_a_put_with_a_lost_reply_is_recognised_as_the_brokers_own(autojump_clock, nursery):
    store = FaultyStore(MemoryStore())
    store.lose_reply(On(PUT, times=1))
    log = Log(store)
    await nursery.start(log.wal.run)
    await log.append(0).wait()
    assert (log.durable, store.count(PUT)) == ([0], 2)


async def test_a_damaged_read_after_a_lost_reply_is_repeated(autojump_clock, nursery):
    """It raised DamagedObject, and ended the broker."""
    store = FaultyStore(MemoryStore())
    store.lose_reply(On(PUT, times=1))
    cut = store.truncate(On("get_range", times=2))
    log = Log(store)
    await nursery.start(log.wal.run)
    await log.append(0).wait()
    assert (log.durable, cut.met_count, log.wal._retry_count) == ([0], 2, 3)


async def test_metadata_shares_wal_objects_and_is_not_passed_to_partitions(autojump_clock, nursery):
    log = Log(MemoryStore())
    await nursery.start(log.wal.run)
    round = log.append_metadata()
    log.append(0)
    await round.wait()
    assert log.durable == [0]
    assert log.wal.metadata_position == log.wal.durable_position == WalPosition(0, 1)
    await log.append(1).wait()
    assert (log.wal.metadata_position, log.wal.durable_position) == (WalPosition(0, 1), WalPosition(0, 2))


@pytest.mark.parametrize("partition_count", [1, 100, 1000])
async def test_puts_do_not_depend_on_the_number_of_partitions(autojump_clock, nursery, partition_count):
    store = FaultyStore(MemoryStore())
    store.delay(On(PUT), 0.05)
    log = Log(store)
    await nursery.start(log.wal.run)
    for step in range(1000):
        log.append(step, partition=step % partition_count)
        await trio.sleep(0.001)
    await log.wal.settle()
    assert store.count(PUT) == 21


# ---- the end ---------------------------------------------------------------------------------------------------------


async def run_until_fenced(wal: S3Wal, *, task_status) -> None:
    with pytest.raises(Fenced, match="epoch 0"):
        await wal.run(task_status=task_status)


async def test_a_fenced_wal_acknowledges_nothing_more_and_raises_storage_failed(autojump_clock):
    store = FaultyStore(MemoryStore())
    log = Log(store)
    async with trio.open_nursery() as nursery:
        await nursery.start(run_until_fenced, log.wal)
        await log.append(0).wait()
        assert await replayed(store, epoch=1) == [0]
        round = log.append(1)
        with pytest.raises(StorageFailed, match="taken over"):
            await round.wait()
    assert log.durable == [0]
    with pytest.raises(StorageFailed):
        log.append(2)
    assert await replayed(store, epoch=2) == [0]


async def test_a_stopped_log_fails_its_waiters(autojump_clock):
    store = FaultyStore(MemoryStore())
    store.hold(On(PUT))
    log = Log(store)
    async with trio.open_nursery() as nursery:
        await nursery.start(log.wal.run)
        rounds = [log.append(0)]
        await wait_all_tasks_blocked()
        rounds.append(log.append(1))
        nursery.cancel_scope.cancel()
    for round in rounds:
        with pytest.raises(StorageFailed):
            await round.wait()


@pytest.mark.parametrize("step", range(0, 60, 3))
async def test_a_kill_at_any_step_loses_nothing_that_was_acknowledged(autojump_clock, step):
    store = FaultyStore(MemoryStore(), random.Random(step))
    store.delay(On(PUT), 0.0, jitter_seconds=0.05)
    store.delay(On(PUT), 0.0, jitter_seconds=0.05, after_effect=True)
    log = Log(store, object_bytes=250)
    async with trio.open_nursery() as nursery:
        await nursery.start(log.wal.run)

        async def produce() -> None:
            for offset in range(100):
                log.append(offset)
                await trio.sleep(0.001)

        nursery.start_soon(produce)
        await trio.sleep(0.003 * step)
        nursery.cancel_scope.cancel()
    store.heal()
    found = await replayed(store)
    assert found[: len(log.durable)] == log.durable
    assert found == list(range(len(found)))
    assert await replayed(store, epoch=100) == found


# ---- deletion --------------------------------------------------------------------------------------------------------


async def objects(store, count: int, nursery, **settings) -> Log:
    log = Log(store, **settings)
    await nursery.start(log.wal.run)
    for offset in range(count):
        await log.append(offset).wait()
    return log


async def test_an_object_is_deleted_when_released_and_trimmed_oldest_first(autojump_clock, nursery):
    store = MemoryStore()
    log = await objects(store, 4, nursery)
    first, second, third, _ = [entry.file for entry in log.entries]
    log.wal.release(first)
    log.wal.release(third)
    await wait_all_tasks_blocked()
    assert len(await keys(store)) == 4  # the metadata in it may be nowhere else
    log.wal.trim(WalPosition(0, 4))
    await wait_all_tasks_blocked()
    assert await keys(store) == [key(2), key(3), key(4)]
    log.wal.release(second)
    await trio.sleep(2 * DELETION_PAUSE_SECONDS)
    assert await keys(store) == [key(4)]


async def test_one_look_at_the_claim_is_for_all_objects_that_can_be_deleted(autojump_clock, nursery):
    store, looks = MemoryStore(), []

    async def confirm_lead() -> None:
        looks.append(trio.current_time())
        await trio.lowlevel.checkpoint()

    log = await objects(GuardedStore(store, DeletionGuard(confirm_lead=confirm_lead)), 251, nursery)
    for entry in log.entries:
        log.wal.release(entry.file)
    log.wal.trim(WalPosition(0, 251))
    await trio.sleep(5)
    assert await keys(store) == [key(251)]
    assert len(looks) == 3


async def test_deletions_keep_up_with_a_high_rate_of_puts(autojump_clock, nursery):
    """There was a pause of a second behind each hundred, so a log with more PUTs a second grew without end."""
    store = FaultyStore(MemoryStore())
    store.delay(On(PUT), 0.002)
    log = Log(store)
    await nursery.start(log.wal.run)
    counts: list[int] = []
    for offset in range(1500):
        await log.append(offset).wait()
        log.wal.release(log.entries[-1].file)
        log.wal.trim(log.wal.durable_position)
        counts.append(len(await keys(store)))
    assert max(counts) <= 2 * s3_wal.DELETED_LEAST_COUNT


@pytest.mark.parametrize("is_stream", [False, True])
async def test_many_objects_go_at_once_and_of_a_stream_the_oldest_before(autojump_clock, nursery, is_stream):
    store = FaultyStore(MemoryStore())
    log = await objects(store, 10, nursery, is_stream=is_stream)
    log.wal.trim(WalPosition(0, 10))
    for entry in log.entries:
        log.wal.release(entry.file)
    await wait_all_tasks_blocked()
    deleted = [call.keys for call in store.calls if call.operation == "delete"]
    names = [key(number) for number in range(1, 10)]
    assert deleted == ([(names[0],), tuple(names[1:])] if is_stream else [tuple(names)])


async def test_a_deletion_that_has_failed_ends_before_another_one_begins(autojump_clock, nursery):
    """As any of its objects may be left, nobody can tell by the oldest one what of later ones has gone."""
    store = FaultyStore(MemoryStore())
    log = await objects(store, 10, nursery, is_stream=True)
    store.fail(On("delete", times=3))
    for entry in log.entries[:5]:
        log.wal.release(entry.file)
    await wait_all_tasks_blocked()
    for entry in log.entries[5:]:
        log.wal.release(entry.file)
    await trio.sleep(5 * DELETE_RETRY_SECONDS)
    assert await keys(store) == [key(10)]
    deleted = [call.keys for call in store.calls if call.operation == "delete"]
    first = [key(number) for number in range(1, 6)]
    rest = [key(number) for number in range(6, 10)]
    assert deleted == [*[(first[0],)] * 4, tuple(first[1:]), (rest[0],), tuple(rest[1:])]


async def test_a_deletion_cut_short_by_a_crash_is_not_damage(autojump_clock, nursery):
    store = MemoryStore()
    await objects(store, 20, nursery)
    await store.delete([key(number) for number in (1, 2, 4, 5, 6, 9, 11, 12)])
    found: list[int] = []

    def handle(entry: WalEntry) -> bool:
        found.append(entry.base_offset)
        return entry.base_offset >= 12  # what is below is in segments

    await (await take_over(store, "default", 1, kept_until=WalPosition(0, 12))).replay(handle)
    assert found == [2, 6, 7, 9, *range(12, 20)]
    await store.delete([key(16)])
    with pytest.raises(DamagedObject):
        await take_over(store, "default", 2, kept_until=WalPosition(0, 12))


async def test_a_broker_that_was_superseded_is_fenced_by_a_deletion_in_its_log(autojump_clock):
    store = MemoryStore()

    async def confirm_lead() -> None:
        await trio.lowlevel.checkpoint()
        raise Fenced("superseded")

    async def run(log: Log) -> None:
        with pytest.raises(Fenced):
            await log.wal.run()

    async with trio.open_nursery() as nursery:
        log = Log(GuardedStore(store, DeletionGuard(confirm_lead=confirm_lead)))
        nursery.start_soon(run, log)
        for offset in range(3):
            await log.append(offset).wait()
        log.wal.release(log.entries[0].file)
        log.wal.trim(WalPosition(0, 3))
    assert await keys(store) == [key(1), key(2), key(3)]


async def test_the_newest_object_stays_so_that_its_successor_can_be_fenced(autojump_clock, nursery):
    store = MemoryStore()
    log = await objects(store, 3, nursery)
    log.wal.trim(WalPosition(0, 3))
    for entry in log.entries:
        log.wal.release(entry.file)
    await wait_all_tasks_blocked()
    assert await keys(store) == [key(3)]
    assert await replayed(store, epoch=1, kept_until=WalPosition(0, 3)) == [2]
    assert await keys(store) == [key(3), key(4)]


async def test_a_deletion_while_earlier_objects_are_replayed_forgets_the_right_one(autojump_clock, nursery):
    """It used to forget the oldest of those that had come in front, which then stayed in the bucket."""
    bucket = MemoryStore()
    await objects(bucket, 1, nursery)
    store = FaultyStore(bucket)
    earlier = await take_over(bucket, "default", 1, kept_until=START)
    log = Log(store, epoch=1, earlier=earlier)
    await nursery.start(log.wal.run)
    for _ in range(2):
        await log.append_metadata().wait()
    gate = store.hold(On("delete"))
    log.wal.trim(WalPosition(1, 1))
    await gate.wait_arrived(1)
    pending: list[WalEntry] = []

    def handle(entry: WalEntry) -> bool:
        pending.append(entry)
        return True

    await log.wal.replay(handle)
    gate.open()
    await wait_all_tasks_blocked()
    assert key(1) in await keys(bucket)
    assert key(1, epoch=1) not in await keys(bucket)
    log.wal.release(pending[0].file)
    await trio.sleep(2 * DELETION_PAUSE_SECONDS)
    assert key(1) not in await keys(bucket)
    assert len(log.wal._objects) == 1


async def test_a_recovery_that_fails_halfway_keeps_the_pending_count_right(autojump_clock, monkeypatch):
    """What had been handed over by then was released and never counted: the log took itself for emptier ever after."""
    store = FaultyStore(MemoryStore())
    async with trio.open_nursery() as nursery:
        before = Log(store)
        await nursery.start(before.wal.run)
        for offset in range(3):
            await before.append(offset).wait()
        nursery.cancel_scope.cancel()
    monkeypatch.setattr(s3_replay, "SMALL_READS_AT_ONCE_COUNT", 1)
    wal = S3Wal(store=store, namespace="default", epoch=1)
    earlier = await take_over(store, "default", 1, kept_until=START)
    taken: list[WalEntry] = []
    rule = store.fail(On("get", key(3)), StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        await wal.recover(earlier, lambda entry: not taken.append(entry))
    assert (len(taken), wal.pending_count) == (2, 2)
    for entry in taken:
        wal.release(entry.file)
    assert wal.pending_count == 0
    store.end(rule)
    await wal.recover(earlier, lambda entry: True)
    assert wal.pending_count == 3


async def test_objects_retained_by_a_reader_stay(autojump_clock, nursery):
    store = MemoryStore()
    log = await objects(store, 2, nursery)
    file = log.entries[0].file
    log.wal.trim(WalPosition(0, 2))
    log.wal.retain(file)
    log.wal.release(file)
    await wait_all_tasks_blocked()
    assert len(await keys(store)) == 2
    log.wal.release(file)
    await wait_all_tasks_blocked()
    assert len(await keys(store)) == 1


async def test_a_failed_deletion_is_retried_before_any_later_object_is_deleted(autojump_clock, nursery):
    store = FaultyStore(MemoryStore())
    log = await objects(store, 4, nursery)
    store.fail(On("delete", times=3))
    for entry in log.entries[:3]:
        log.wal.release(entry.file)
    log.wal.trim(WalPosition(0, 4))
    await wait_all_tasks_blocked()
    assert len(await keys(store)) == 4
    await trio.sleep(200)
    assert await keys(store) == [key(4)]
