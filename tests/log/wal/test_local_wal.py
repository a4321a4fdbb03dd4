"""The write-ahead log over a disk in memory: group commit, failure, and kills at every step."""

import errno
import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.errors import DamagedObject, StorageFailed
from kafscale.log.wal.journal import Round
from kafscale.log.wal.local_wal import LARGE_ENTRY_BYTES
from kafscale.testing.disk import MemoryDisk
from tests.devtools.world.determinism import seeds
from tests.log.wal.memory_wal import Log, content, replayed, written


async def test_an_entry_is_durable_and_reported_before_its_waiter_wakes(autojump_clock, nursery):
    log = Log(MemoryDisk(sync_seconds=0.01))
    await log.start(nursery)
    round = log.append(0)
    assert (round.done, log.durable) == (False, [])
    await round.wait()
    (entry,) = log.durable
    assert round.done
    assert (entry.base_offset, entry.sequence, entry.file.pending_count) == (0, 1, 1)
    assert await log.wal.read(entry.file, [(entry.position, 100)]) == content(0, 100)


async def test_entries_that_arrive_during_a_sync_share_the_next(autojump_clock, nursery):
    log = Log(MemoryDisk(sync_seconds=0.01))
    await log.start(nursery)
    first = log.append(0)
    await wait_all_tasks_blocked()
    rest = [log.append(offset) for offset in range(1, 6)]
    assert all(round is rest[0] for round in rest)
    assert rest[0] is not first
    await rest[0].wait()
    assert log.groups == [1, 5]
    assert [entry.base_offset for entry in log.durable] == list(range(6))
    assert sum(log.wal.sync_seconds.counts) == 2


async def test_a_sync_of_a_large_entry_does_not_wait_for_later_entries(autojump_clock, nursery):
    log = Log(MemoryDisk(sync_seconds=0.5), segment_bytes=8 * LARGE_ENTRY_BYTES, sync_interval_seconds=0.1)
    await log.start(nursery)
    began = trio.current_time()
    sizes = [100, 100, LARGE_ENTRY_BYTES, 100, LARGE_ENTRY_BYTES, LARGE_ENTRY_BYTES, 100, 100]
    rounds = [log.append(offset, size) for offset, size in enumerate(sizes)]
    assert sum(len(round._entries) for round in log.wal._rounds()) == len(sizes)
    for round, seconds in zip(rounds, [0.5, 0.5, 0.5, 1.0, 1.0, 1.5, 2.0, 2.0], strict=True):
        await round.wait()
        assert trio.current_time() - began == pytest.approx(seconds)
    assert log.groups == [3, 2, 1, 2]
    assert [entry.base_offset for entry in log.durable] == list(range(len(sizes)))


async def test_accepted_large_entries_are_written_when_the_wal_is_cancelled(autojump_clock):
    log = Log(MemoryDisk(sync_seconds=0.1), segment_bytes=8 * LARGE_ENTRY_BYTES)
    async with trio.open_nursery() as nursery:
        await log.start(nursery)
        rounds = [log.append(offset, LARGE_ENTRY_BYTES) for offset in range(3)]
        nursery.cancel_scope.cancel()
    assert all(round.done for round in rounds)


async def test_large_entries_get_the_failure_of_the_first_one(autojump_clock):
    disk = MemoryDisk(sync_seconds=0.1)
    log = Log(disk, segment_bytes=8 * LARGE_ENTRY_BYTES)
    rounds: list[Round] = []
    with pytest.RaisesGroup(StorageFailed):
        async with trio.open_nursery() as nursery:
            await log.start(nursery)
            disk.fail("sync")
            rounds += [log.append(offset, LARGE_ENTRY_BYTES) for offset in range(3)]
    assert rounds
    for round in rounds:
        with pytest.raises(StorageFailed):
            await round.wait()


async def test_the_first_append_after_idle_never_waits_for_the_interval(autojump_clock, nursery):
    log = Log(MemoryDisk(sync_seconds=0.5), sync_interval_seconds=0.1)
    await log.start(nursery)
    for offset in range(3):
        began = trio.current_time()
        await log.append(offset).wait()
        assert trio.current_time() - began == pytest.approx(0.5)


async def replies_and_syncs(sync_seconds: float, interval_seconds: float, client_count: int = 8) -> tuple[int, int]:
    """In one second, with clients that append again 0.1, 0.2, 0.3 ... ms after their reply."""
    log = Log(MemoryDisk(sync_seconds=sync_seconds), segment_bytes=1 << 20, sync_interval_seconds=interval_seconds)
    reply_count = 0

    async def client(think_seconds: float) -> None:
        nonlocal reply_count
        while True:
            await log.append(reply_count).wait()
            reply_count += 1
            await trio.sleep(think_seconds)

    async with trio.open_nursery() as nursery:
        await log.start(nursery)
        for number in range(1, client_count + 1):
            nursery.start_soon(client, 0.0001 * number)
        await trio.sleep(1)
        result = reply_count, sum(log.wal.sync_seconds.counts)
        nursery.cancel_scope.cancel()
    return result


async def test_a_gathering_interval_makes_each_slow_sync_cover_more_entries(autojump_clock):
    replies, syncs = await replies_and_syncs(0.010, 0.0)
    gathered_replies, gathered_syncs = await replies_and_syncs(0.010, 0.002)
    assert gathered_replies > 1.5 * replies
    assert gathered_syncs < syncs


@pytest.mark.parametrize("sync_seconds", [0.00073, 0.00171])  # no multiples of the pauses: no two at a time
@pytest.mark.parametrize("client_count", [1, 2, 8])
async def test_the_interval_costs_fast_syncs_nothing(sync_seconds, client_count, autojump_clock):
    at_once = await replies_and_syncs(sync_seconds, 0.0, client_count)
    assert await replies_and_syncs(sync_seconds, 0.002, client_count) == at_once


async def test_the_interval_costs_a_producer_that_is_alone_nothing_on_a_slow_disk(autojump_clock):
    assert await replies_and_syncs(0.010, 0.002, 1) == await replies_and_syncs(0.010, 0.0, 1)


@pytest.mark.parametrize("client_count", [2, 3, 8])
async def test_the_interval_costs_few_producers_nothing_on_a_slow_disk(client_count, autojump_clock):
    replies, _ = await replies_and_syncs(0.010, 0.002, client_count)
    assert replies >= (await replies_and_syncs(0.010, 0.0, client_count))[0]


async def test_after_a_pause_a_sync_does_not_wait_for_earlier_peers(autojump_clock, nursery):
    log = Log(MemoryDisk(sync_seconds=0.5), sync_interval_seconds=0.1)
    await log.start(nursery)
    for _ in range(5):
        await [log.append(0) for _ in range(7)][-1].wait()
    await trio.sleep(1)
    began = trio.current_time()
    await log.append(0).wait()
    assert trio.current_time() - began == pytest.approx(0.5)


async def test_sequences_go_on_when_every_entry_has_been_deleted(autojump_clock):
    disk = await written(40)
    for _ in range(2):
        log = Log(disk.crash())
        async with trio.open_nursery() as nursery:
            await log.start(nursery, needed=lambda offset: False)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        disk = log.disk
    log = Log(disk.crash())
    async with trio.open_nursery() as nursery:
        await log.start(nursery)
        assert log.replayed == []
        await log.append(99).wait()
        nursery.cancel_scope.cancel()
    assert log.durable[0].sequence == 41


@pytest.mark.parametrize("operation", ["write", "sync"])
@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_write_that_finds_no_room_is_made_again_when_there_is_some(
    autojump_clock, nursery, operation, error_number
):
    """As on file systems that need room to overwrite; it ended the broker."""
    log = Log(MemoryDisk())
    await log.start(nursery)
    await log.append(0).wait()
    for after in range(25):
        log.disk.fail(operation, after=after, error_number=error_number)
    refused, others = log.append(1), [log.append(offset) for offset in range(2, 5)]
    with pytest.raises(trio.TooSlowError):
        await refused.wait()
    assert log.wal.is_full
    assert await replayed(log.disk.crash()) == [0]
    await trio.sleep(10)
    assert all(round.done for round in (refused, *others))
    assert not log.wal.is_full
    assert not log.wal.files.room.out_of_space
    assert await replayed(log.disk.crash()) == list(range(5))


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_failed_sync_fails_its_round_and_all_queued_ones_and_is_never_retried(autojump_clock, operation):
    log = Log(MemoryDisk(sync_seconds=0.01))
    log.disk.fail(operation, after=1)
    with pytest.RaisesGroup(pytest.RaisesExc(StorageFailed, match=r"cannot write wal-0+1\.log: .* \(errno 5\)")):
        async with trio.open_nursery() as nursery:
            await log.start(nursery)
            await log.append(0).wait()
            failing = log.append(1)
            await trio.sleep(0.005)
            queued = log.append(2) if operation == "sync" else failing
            for round in (failing, queued):
                with trio.CancelScope(shield=True), pytest.raises(StorageFailed):
                    await round.wait()
                assert not round.done
    with pytest.raises(StorageFailed, match="errno 5"):
        log.append(3)
    assert log.disk.operations["write"] == 2
    assert [entry.base_offset for entry in log.durable] == [0]


async def test_a_cancelled_wal_writes_accepted_entries_and_then_refuses_appends(autojump_clock):
    log = Log(MemoryDisk(sync_seconds=0.5))
    async with trio.open_nursery() as nursery:
        await log.start(nursery)
        rounds = [log.append(0)]
        await trio.sleep(0.1)
        rounds += [log.append(offset) for offset in range(1, 60)]
        nursery.cancel_scope.cancel()
    assert all(round.done for round in rounds)
    assert await replayed(log.disk.crash()) == list(range(60))
    with pytest.raises(StorageFailed, match="the WAL is closed"):
        log.append(60)


async def test_the_drain_is_bounded(autojump_clock):
    log = Log(MemoryDisk(sync_seconds=2.0))
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        await log.start(nursery)
        rounds = [log.append(offset, 1500) for offset in range(20)]
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began < 9
    with pytest.raises(StorageFailed, match="the WAL is closed"):
        await rounds[-1].wait()
    assert 0 < len(log.durable) < 20


async def test_damage_is_found_when_an_entry_is_read_back(autojump_clock, nursery):
    log = Log(MemoryDisk())
    await log.start(nursery)
    await log.append(0).wait()
    (entry,) = log.durable
    log.disk.flip_bit(entry.file.name, entry.position + 50)
    with pytest.raises(DamagedObject, match=r"memory/wal-0+1\.log: the entry at 64 is damaged"):
        await log.wal.read(entry.file, [(entry.position, 100)])
    log.disk.fail("read")
    with pytest.raises(StorageFailed, match="errno 5"):
        await log.wal.read(entry.file, [(entry.position, 100)])


class KillAfter(trio.abc.Instrument):
    """Takes the disk's state after a number of task steps, as a power cut would."""

    def __init__(self, steps: int, kill) -> None:
        self.steps = steps
        self.kill = kill

    def after_task_step(self, task) -> None:
        self.steps -= 1
        if not self.steps:
            self.kill()


class Life:
    """One process on a disk: three producers and a flusher, over rotations and deletions, until it is killed."""

    def __init__(self, disk: MemoryDisk, rng: random.Random, world: "World") -> None:
        disk.sync_seconds = rng.choice([0.0, 0.001])
        self.log = Log(disk, sync_interval_seconds=rng.choice([0.0, 0.0005]))
        self.rng = rng
        self.world = world
        self.scope = trio.CancelScope()
        self.left: MemoryDisk | None = None

    def kill(self) -> None:
        self.left = self.log.disk.crash(rng=self.rng)
        self.scope.cancel()

    async def run(self, steps: int) -> MemoryDisk:
        killer = KillAfter(steps, self.kill)
        trio.lowlevel.add_instrument(killer)
        with self.scope:
            async with trio.open_nursery() as nursery:
                await self.log.start(nursery, needed=lambda offset: offset not in self.world.flushed)
                self.world.check(self.log.replayed)
                nursery.start_soon(self.flush)
                async with trio.open_nursery() as producers:
                    for _ in range(3):
                        producers.start_soon(self.produce)
                nursery.cancel_scope.cancel()
        trio.lowlevel.remove_instrument(killer)
        return self.left or self.log.disk.crash()

    async def produce(self) -> None:
        for _ in range(30):
            try:
                offset = self.world.next_offset
                round = self.log.append(offset, self.rng.randrange(1, 400))
                self.world.next_offset += 1
                await round.wait()
            except StorageFailed:
                assert self.left is not None
            if self.left is not None:
                return
            self.world.acknowledged.add(offset)
            if self.rng.random() < 0.3:
                await trio.sleep(0.0005)

    async def flush(self) -> None:
        while True:
            await trio.sleep(0.002)
            for entry in self.log.durable:
                if self.left is None and entry.base_offset not in self.world.flushed:
                    self.world.flushed.add(entry.base_offset)
                    self.log.wal.release(entry.file)


class World:
    """What outlives a process: the bucket, and what clients have been told."""

    def __init__(self) -> None:
        self.flushed: set[int] = set()
        self.acknowledged: set[int] = set()
        self.next_offset = 0

    def check(self, replayed: list[int]) -> None:
        assert replayed == sorted(set(replayed)), "out of order, or twice"
        assert self.acknowledged - self.flushed <= set(replayed), "an acknowledged entry is missing"
        self.next_offset = max([-1, *replayed, *self.flushed]) + 1  # as a partition goes on behind its last entry


@pytest.mark.parametrize("seed", seeds(100, more=200))
async def test_a_kill_at_any_step_loses_repeats_and_reorders_no_acknowledged_entry(seed, autojump_clock):
    rng = random.Random(seed)
    disk, world = MemoryDisk(), World()
    for _ in range(4):
        disk = await Life(disk, rng, world).run(rng.randrange(1, 500))
    world.check(await replayed(disk))
