"""The files of the local log: made ahead, deleted in order, used again, and waited for while the disk is full."""

import errno
import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.errors import StorageFailed, StorageFull
from kafscale.formats.wal_entries import ENTRY_HEADER_BYTES, FILE_HEADER_BYTES
from kafscale.log.wal.local_files import NO_SPACE_RETRY_SECONDS, SPARES_MAX_COUNT
from kafscale.testing.disk import MemoryDisk
from tests.log.wal.memory_wal import SEGMENT_BYTES, Log, replayed, written


async def test_entries_go_on_in_the_next_file_which_was_ready(autojump_clock, nursery):
    log = Log(MemoryDisk(create_seconds=0.01))
    await log.start(nursery)
    for offset in range(60):
        await log.append(offset).wait()
        await trio.sleep(0.01)
    assert len(log.wal.files.in_use) == 5
    assert log.wal.files.stall_count == 0
    assert [entry.sequence for entry in log.durable] == list(range(1, 61))
    assert await replayed(log.disk.crash()) == list(range(60))


async def test_rotation_under_load_waits_for_the_file_and_keeps_the_order(autojump_clock, nursery):
    log = Log(MemoryDisk(create_seconds=1.0))
    await log.start(nursery)
    rounds = [log.append(offset, size) for offset, size in enumerate(random.Random(1).choices(range(1, 900), k=100))]
    await rounds[-1].wait()
    assert log.wal.files.stall_count > 5
    assert [entry.base_offset for entry in log.durable] == list(range(100))
    assert await replayed(log.disk.crash()) == list(range(100))


async def test_an_entry_larger_than_a_wal_file_gets_a_file_of_matching_size(autojump_clock, nursery):
    log = Log(MemoryDisk())
    await log.start(nursery)
    for offset, size in enumerate([100, 5 * SEGMENT_BYTES, 100]):
        await log.append(offset, size).wait()
    sizes = sorted(len(content) for content in log.disk.files.values())
    assert sizes[-1] == FILE_HEADER_BYTES + ENTRY_HEADER_BYTES + 5 * SEGMENT_BYTES
    assert await replayed(log.disk.crash()) == [0, 1, 2]


async def test_a_next_file_that_is_too_short_for_an_entry_is_put_aside(autojump_clock, nursery):
    log = Log(MemoryDisk())
    await log.start(nursery)
    await wait_all_tasks_blocked()
    await log.append(0, 5 * SEGMENT_BYTES).wait()
    await wait_all_tasks_blocked()
    others = set(log.disk.files) - {file.name for file in log.wal.files.in_use}
    assert len([name for name in others if not name.startswith("spare-")]) == 1, "the next file, and nothing forgotten"


async def test_wal_files_are_deleted_oldest_first_once_no_entry_is_pending(autojump_clock, nursery):
    log = Log(MemoryDisk())
    await log.start(nursery)
    for offset in range(60):
        await log.append(offset).wait()
    await wait_all_tasks_blocked()
    oldest, second, *_ = files = list(dict.fromkeys(entry.file for entry in log.durable))
    log.wal.release(second, second.pending_count)
    await wait_all_tasks_blocked()
    assert {file.name for file in files} <= set(log.disk.files), "an older file is still needed"
    log.wal.release(oldest, oldest.pending_count)
    await wait_all_tasks_blocked()
    assert not {oldest.name, second.name} & set(log.disk.files)
    assert {file.name for file in files[2:]} < set(log.disk.files)


async def test_replayed_entries_that_are_needed_keep_their_file_until_they_are_released(autojump_clock, nursery):
    disk = await written(40)
    log = Log(disk.crash())
    await log.start(nursery, needed=lambda offset: offset == 20)
    await wait_all_tasks_blocked()
    assert log.wal.pending_count == 1
    holder = log.wal.files.in_use[0]
    assert holder.header.sequence <= 21
    log.wal.release(holder)
    await wait_all_tasks_blocked()
    assert log.wal.pending_count == 0
    assert len(log.wal.files.in_use) == 1


async def test_a_full_disk_makes_appends_wait_until_a_flush_has_freed_a_file(autojump_clock, nursery, caplog):
    log = Log(MemoryDisk(free_bytes=2 * SEGMENT_BYTES))
    await log.start(nursery)
    rounds = [log.append(offset) for offset in range(60)]
    await trio.sleep(10)
    assert not rounds[-1].done
    assert log.wal.files.room.out_of_space
    assert caplog.text.count("no space for a WAL file of 2048 bytes") == 1
    while log.wal.files.room.out_of_space:
        log.wal.release(log.wal.files.in_use[0], log.wal.files.in_use[0].pending_count)
        await trio.sleep(2)
    assert rounds[-1].done
    assert [entry.base_offset for entry in log.durable] == list(range(60))


async def test_the_wal_reuses_its_files_while_others_fill_the_disk(autojump_clock, nursery):
    """Each file that a flush had freed was deleted to make room for the next one, and then there was none."""
    log = Log(MemoryDisk())
    await log.start(nursery)
    for offset in range(20):
        await log.append(offset).wait()
    log.disk.free_bytes = -1 << 40
    for offset in range(20, 120):
        round = log.append(offset)
        while not round.done:
            await trio.sleep(0.5)
            if log.wal.is_full:
                oldest = log.wal.files.in_use[0]
                log.wal.release(oldest, oldest.pending_count)
    assert len(log.wal.files.in_use) >= 2
    assert [entry.base_offset for entry in log.durable] == list(range(120))
    assert (await replayed(log.disk.crash()))[-1] == 119


async def test_a_file_that_can_not_be_used_again_on_a_full_disk_makes_room(autojump_clock, nursery, monkeypatch):
    """As where a file system copies on write."""

    async def refuse(*_):
        raise OSError(errno.ENOSPC, "no space")

    log = Log(MemoryDisk(free_bytes=2 * SEGMENT_BYTES))
    await log.start(nursery)
    rounds = [log.append(offset) for offset in range(25)]
    await trio.sleep(1)
    assert log.wal.is_full
    assert log.wal.lacks_room
    monkeypatch.setattr(MemoryDisk, "_reuse", refuse)
    log.wal.release(log.wal.files.in_use[0], log.wal.files.in_use[0].pending_count)
    with trio.fail_after(5):
        await rounds[-1].wait()
    assert not log.wal.lacks_room


async def test_a_log_at_its_limit_lacks_no_room_on_the_disk(autojump_clock, nursery):
    log = Log(MemoryDisk(), max_bytes=2 * SEGMENT_BYTES)
    await log.start(nursery)
    for offset in range(25):
        log.append(offset)
    await trio.sleep(5)
    assert log.wal.is_full
    assert not log.wal.lacks_room


async def test_a_wal_file_that_cannot_be_deleted_for_lack_of_space_is_deleted_later(autojump_clock, nursery):
    """It ended the log, and the broker: file systems that copy on write need room to delete something."""
    log = Log(MemoryDisk())
    await log.start(nursery)
    for offset in range(60):
        await log.append(offset).wait()
    await wait_all_tasks_blocked()
    oldest = log.wal.files.in_use[0]
    log.disk.fail("rename", error_number=errno.ENOSPC)
    log.disk.fail("delete", error_number=errno.EDQUOT)
    log.wal.release(oldest, oldest.pending_count)
    await wait_all_tasks_blocked()
    assert oldest.name in log.disk.files
    await log.append(60).wait()
    await trio.sleep(NO_SPACE_RETRY_SECONDS + 1)
    assert oldest.name not in log.disk.files
    assert oldest not in log.wal.files.in_use
    assert await replayed(log.disk.crash()) == list(range(oldest.entry_count, 61))


async def test_spare_files_that_cannot_be_deleted_for_lack_of_space_are_retried(autojump_clock, nursery):
    log = Log(MemoryDisk())
    await log.start(nursery)
    for offset in range(60):
        await log.append(offset).wait()
    for file in list(log.wal.files.in_use)[:3]:
        log.wal.release(file, file.pending_count)
    await wait_all_tasks_blocked()
    assert sum(name.startswith("spare-") for name in log.disk.files) == 3
    log.disk.fail("create", error_number=errno.ENOSPC)
    log.disk.fail("create", error_number=errno.ENOSPC, after=1)
    log.disk.fail("delete", error_number=errno.ENOSPC)
    with trio.fail_after(10):
        await log.append(60, 5 * SEGMENT_BYTES).wait()
    assert not any(name.startswith("spare-") for name in log.disk.files)


async def test_a_start_without_space_for_deletions_leaves_files_to_the_next_start():
    disk = await written(40)
    before = set(disk.files)
    disk.fail("delete", error_number=errno.ENOSPC)
    assert await replayed(disk) == list(range(40))
    assert disk.files.keys() == before
    assert await replayed(disk) == list(range(40))
    assert len(disk.files) < len(before)


async def test_waiters_for_room_go_on_as_soon_as_the_writer_does(autojump_clock, nursery):
    log = Log(MemoryDisk(free_bytes=2 * SEGMENT_BYTES))
    await log.start(nursery)
    rounds = [log.append(offset) for offset in range(25)]
    await trio.sleep(1)
    assert log.wal.is_full
    with trio.move_on_after(10) as waiting:
        await log.wal.wait_for_room()
    assert waiting.cancelled_caught
    log.wal.release(log.wal.files.in_use[0], log.wal.files.in_use[0].pending_count)
    with trio.fail_after(5):
        await log.wal.wait_for_room()
        await rounds[-1].wait()
    assert not log.wal.is_full


async def test_a_wal_without_space_for_its_next_file_is_not_full_and_hurries_flushes(autojump_clock, nursery):
    log = Log(MemoryDisk(free_bytes=SEGMENT_BYTES))
    told_at: list[float] = []
    log.wal.on_growth.append(lambda: told_at.append(trio.current_time()))
    await log.start(nursery)
    await trio.sleep(5)
    assert log.wal.files.room.out_of_space
    assert told_at, "flushes are to be hurried"
    assert not log.wal.is_full
    with trio.fail_after(1):
        await log.append(0).wait()


@pytest.mark.parametrize("operation", ["create", "write", "rename"])
async def test_a_copy_of_a_file_that_finds_no_room_is_made_by_a_later_start(autojump_clock, operation):
    """Half a copy was taken for one, and the file was let go."""
    disk = (await written(10)).crash()
    log = Log(disk)
    await log.replay(needed=lambda offset: False)
    (oldest, *_) = log.wal.files.in_use
    content = bytes(disk.files[oldest.name])
    disk.fail(operation, error_number=errno.ENOSPC)
    with pytest.raises(StorageFull):
        await log.wal.files.keep_copy(oldest)
    assert oldest.pending_count == 1
    again = Log(disk.crash())
    await again.replay(needed=lambda offset: False)
    assert await again.wal.files.keep_copy(again.wal.files.in_use[0])
    assert not await again.wal.files.keep_copy(again.wal.files.in_use[0])
    assert bytes(again.disk.files[f"superseded-{oldest.name}"]) == content
    assert not any(name.startswith("spare-") for name in again.disk.files)


async def test_a_start_on_a_full_disk_waits_for_no_file(autojump_clock, nursery):
    """It waited for room before it served anything."""
    disk = await written(40)
    disk = disk.crash()
    disk.free_bytes = -4 * SEGMENT_BYTES  # so that what a replay deletes is no room either
    log = Log(disk)
    with trio.fail_after(5):
        await log.start(nursery)
    assert log.replayed == list(range(40))
    round = log.append(40)
    with pytest.raises(trio.TooSlowError):
        await round.wait()
    assert log.wal.is_full
    disk.free_bytes = 4 * SEGMENT_BYTES
    with trio.fail_after(5):
        while not round.done:
            await trio.sleep(1)
    assert not log.wal.is_full
    assert await replayed(disk.crash()) == list(range(41))


async def test_too_many_unflushed_entries_fill_the_log_even_if_short(autojump_clock, nursery, caplog):
    log = Log(MemoryDisk(), waiting_max_count=40)
    await log.start(nursery)
    rounds = []
    for offset in range(100):
        rounds.append(log.append(offset))
        await trio.sleep(0.01)
    await trio.sleep(10)
    assert 30 <= log.wal.pending_count <= 40
    assert not rounds[-1].done
    assert caplog.text.count("batches wait for a flush") == 1
    while not rounds[-1].done:
        log.wal.release(log.wal.files.in_use[0], log.wal.files.in_use[0].pending_count)
        await trio.sleep(2)
        assert log.wal.pending_count <= 40
    assert [entry.base_offset for entry in log.durable] == list(range(100))


async def test_a_disk_that_fails_to_make_a_file_ends_the_log(autojump_clock):
    log = Log(MemoryDisk())
    log.disk.fail("create", after=1, error_number=errno.EIO)
    with pytest.RaisesGroup(pytest.RaisesExc(StorageFailed, match="cannot make a file"), flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await log.start(nursery)
            await trio.sleep_forever()


async def append_all(log: Log, offsets: range) -> None:
    """One by one, and each is in the bucket as soon as it is durable."""
    for offset in offsets:
        await log.append(offset).wait()
        log.wal.release(log.durable[-1].file)
        await wait_all_tasks_blocked()


async def test_unneeded_files_are_reused(autojump_clock, nursery):
    log = Log(MemoryDisk())
    await log.start(nursery)
    await append_all(log, range(200))
    assert len({entry.file.name for entry in log.durable}) > 10
    assert len(log.disk.files) <= 3
    assert log.disk.operations["delete"] == 0
    assert log.disk.operations["rename"] > 10


async def test_no_more_files_are_put_aside_than_a_few(autojump_clock, nursery):
    log = Log(MemoryDisk())
    await log.start(nursery)
    for offset in range(200):
        await log.append(offset).wait()
    for entry in log.durable:
        log.wal.release(entry.file)
    await wait_all_tasks_blocked()
    spares = [name for name in log.disk.files if name.startswith("spare-")]
    assert (len(spares), len(log.disk.files)) == (SPARES_MAX_COUNT, SPARES_MAX_COUNT + 2)


async def test_files_put_aside_make_room_for_a_larger_one(autojump_clock, nursery):
    log = Log(MemoryDisk(free_bytes=4 * SEGMENT_BYTES), max_bytes=4 * SEGMENT_BYTES)
    await log.start(nursery)
    for offset in range(28):
        await log.append(offset).wait()
    for entry in log.durable:
        log.wal.release(entry.file)
    await wait_all_tasks_blocked()
    assert sum(map(len, log.disk.files.values())) == 4 * SEGMENT_BYTES
    with trio.fail_after(5):
        await log.append(28, SEGMENT_BYTES).wait()
    assert (await replayed(log.disk.crash()))[-1] == 28


@pytest.mark.parametrize("seed", range(20))
async def test_a_kill_among_files_that_are_used_again_loses_nothing(seed, autojump_clock):
    rng = random.Random(seed)
    disk = MemoryDisk(sync_seconds=0.01, create_seconds=0.02)
    next_offset = first_needed = 0
    for _ in range(4):
        log = Log(disk, segment_bytes=4 * SEGMENT_BYTES)
        async with trio.open_nursery() as nursery:
            await log.start(nursery, needed=lambda offset, first=first_needed: offset >= first)
            assert set(range(first_needed, next_offset)) <= set(log.replayed) <= set(range(next_offset + 1))
            next_offset = max(next_offset, log.replayed[-1] + 1) if log.replayed else next_offset
            while rng.random() > 0.01:
                await log.append(next_offset, rng.randrange(1, 1500)).wait()
                next_offset += 1
                for entry in log.durable[: max(0, len(log.durable) - 5)]:
                    log.wal.release(entry.file)
                    log.durable.remove(entry)
                    first_needed = entry.base_offset + 1
            log.append(next_offset, 700)
            await trio.sleep(rng.uniform(0, 0.05))
            disk = disk.crash(rng=rng)
            disk.sync_seconds, disk.create_seconds = 0.01, 0.02
            nursery.cancel_scope.cancel()
