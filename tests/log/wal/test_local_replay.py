"""Replay: a torn tail is cut off wherever it was torn, and damage to what was acknowledged is refused by name."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from kafscale.errors import DamagedObject, StorageFailed
from kafscale.formats.wal_entries import ENTRY_HEADER_BYTES, FILE_HEADER_BYTES, WalEntry
from kafscale.log.wal.local_wal import Wal
from kafscale.testing.disk import MemoryDisk

TOPIC = bytes(16)
DATA_BYTES = 40
ENTRY_BYTES = ENTRY_HEADER_BYTES + DATA_BYTES
SEGMENT_BYTES = FILE_HEADER_BYTES + 6 * ENTRY_BYTES
LAST_FILE = f"wal-{4:020d}.log"  # of `used_again`
FIRST_FILE = f"wal-{1:020d}.log"


def make_wal(disk: MemoryDisk) -> Wal:
    return Wal(disk=disk, on_durable=lambda entries: None, segment_bytes=SEGMENT_BYTES, sync_interval_seconds=0.0)


def entry(offset: int) -> WalEntry:
    return WalEntry(TOPIC, 0, 0, offset, content(offset))


def content(offset: int) -> bytes:
    return (offset + 1).to_bytes(1, "big") * DATA_BYTES  # no zeros, which a torn write would leave as they are


async def replay(disk: MemoryDisk, *, on_progress=None) -> list[int]:
    offsets = []

    def handle(entry: WalEntry) -> bool:
        assert bytes(entry.data) == content(entry.base_offset)
        offsets.append(entry.base_offset)
        return True

    await make_wal(disk).replay(handle, on_progress=on_progress)
    return offsets


async def disk_after(*groups: int) -> MemoryDisk:
    """A disk to which groups of so many entries were written, each synced before the next."""
    disk = MemoryDisk()
    wal = make_wal(disk)
    offset = 0
    async with trio.open_nursery() as nursery:
        await wal.replay(lambda entry: True)
        await nursery.start(wal.run)
        await nursery.start(wal.files.prepare)
        for count in groups:
            rounds = [wal.append(entry(offset + index)) for index in range(count)]
            offset += count
            await rounds[-1].wait()
        nursery.cancel_scope.cancel()
    return disk


@asynccontextmanager
async def in_the_middle_of_a_write(count: int, *, after: int) -> AsyncIterator[MemoryDisk]:
    """A disk that `count` entries are being written to at once, behind `after` that are acknowledged."""
    disk = MemoryDisk()
    wal = make_wal(disk)
    async with trio.open_nursery() as nursery:
        await wal.replay(lambda entry: True)
        await nursery.start(wal.run)
        for offset in range(after):
            await wal.append(entry(offset)).wait()
        disk.sync_seconds = 1.0
        for offset in range(after, after + count):
            wal.append(entry(offset))
        await trio.sleep(0.5)
        yield disk
        nursery.cancel_scope.cancel()


async def crash_while_writing(
    count: int, *, after: int = 2, torn_bytes: int = 0, rng: random.Random | None = None
) -> MemoryDisk:
    """A power cut in the middle of that."""
    async with in_the_middle_of_a_write(count, after=after) as disk:
        return disk.crash(torn_bytes=torn_bytes, rng=rng)


async def test_a_tail_torn_at_any_byte_is_cut_off_and_the_wal_accepts_appends(autojump_clock):
    for torn_bytes in range(2 * ENTRY_BYTES + 1):
        disk = await crash_while_writing(2, torn_bytes=torn_bytes)
        expected = list(range(2 + torn_bytes // ENTRY_BYTES))
        wal = make_wal(disk)
        async with trio.open_nursery() as nursery:
            await wal.replay(lambda entry: True)
            await nursery.start(wal.run)
            await wal.append(entry(99)).wait()
            nursery.cancel_scope.cancel()
        assert await replay(disk.crash()) == [*expected, 99], torn_bytes


async def test_a_first_write_torn_at_any_byte_leaves_an_empty_log(autojump_clock):
    for torn_bytes in range(FILE_HEADER_BYTES + ENTRY_BYTES + 1):
        left = await crash_while_writing(1, after=0, torn_bytes=torn_bytes)
        assert await replay(left) == [0] * (torn_bytes == FILE_HEADER_BYTES + ENTRY_BYTES), torn_bytes


@pytest.mark.parametrize("seed", range(50))
async def test_a_torn_write_leaves_a_prefix_of_its_entries(seed, autojump_clock):
    disk = await crash_while_writing(4, rng=random.Random(seed))
    offsets = await replay(disk)
    assert offsets == list(range(len(offsets)))
    assert len(offsets) >= 2
    assert await replay(disk.crash()) == offsets


async def test_cutting_off_a_torn_entry_is_logged_in_one_line(autojump_clock, caplog):
    disk = await crash_while_writing(2, torn_bytes=ENTRY_BYTES + 40)
    assert await replay(disk) == [0, 1, 2]
    (record,) = caplog.records
    position = FILE_HEADER_BYTES + 3 * ENTRY_BYTES
    assert f"memory/{FIRST_FILE}: entry 4 at {position} is not whole and is cut off" in record.getMessage()


async def test_unsynced_entries_are_synced_before_they_are_used(autojump_clock):
    async with in_the_middle_of_a_write(1, after=0) as disk:
        restarted = MemoryDisk()  # kill -9, not a power cut: the page cache survives
        restarted.files = {name: bytearray(content) for name, content in disk.files.items()}
        restarted.synced = {name: bytearray(content) for name, content in disk.synced.items()}
    assert await replay(restarted) == [0]
    assert await replay(restarted.crash()) == [0], "consumers may have seen it by now"


async def test_a_flipped_bit_anywhere_in_an_acknowledged_entry_is_damage(autojump_clock):
    for position in range(FILE_HEADER_BYTES, FILE_HEADER_BYTES + 2 * ENTRY_BYTES):
        disk = await disk_after(1, 1, 1)
        disk.flip_bit(FIRST_FILE, position)
        number = (position - FILE_HEADER_BYTES) // ENTRY_BYTES
        at = FILE_HEADER_BYTES + number * ENTRY_BYTES
        with pytest.raises(DamagedObject, match=rf"memory/{FIRST_FILE}: entry {number + 1} at {at} is damaged"):
            await replay(disk)


async def test_a_bad_entry_in_the_last_group_can_only_be_a_torn_tail(autojump_clock):
    disk = await disk_after(1, 3)
    disk.flip_bit(FIRST_FILE, FILE_HEADER_BYTES + 2 * ENTRY_BYTES)
    assert await replay(disk) == [0, 1]


async def test_a_bad_entry_at_the_end_of_any_file_but_the_last_is_damage(autojump_clock):
    disk = await disk_after(*[1] * 8)
    disk.flip_bit(FIRST_FILE, FILE_HEADER_BYTES + 5 * ENTRY_BYTES + 70)
    with pytest.raises(DamagedObject, match=rf"{FIRST_FILE}: entry 6 at \d+ is damaged: .* wal-0+2\.log was written"):
        await replay(disk)


async def test_a_zeroed_end_of_a_file_but_the_last_is_a_gap(autojump_clock):
    disk = await disk_after(*[1] * 8)
    disk.files[FIRST_FILE][-ENTRY_BYTES:] = bytes(ENTRY_BYTES)
    with pytest.raises(
        DamagedObject, match=rf"wal-0+2\.log: begins with entry 7 at 64, but entry 6 follows {FIRST_FILE}"
    ):
        await replay(disk)


async def test_a_missing_wal_file_is_logged_with_the_count_of_lost_entries(autojump_clock, caplog):
    disk = await disk_after(*[1] * 20)
    del disk.files[f"wal-{2:020d}.log"]
    await replay(disk)
    assert f"wal-{2:020d}.log is missing or empty: at least 6 acknowledged entries are lost" in caplog.text


async def test_a_damaged_header_over_entries_is_damage(autojump_clock):
    disk = await disk_after(1)
    disk.flip_bit(FIRST_FILE, 20)
    with pytest.raises(DamagedObject, match=f"{FIRST_FILE}: the header at 0 is damaged, but entries follow"):
        await replay(disk)


async def test_a_wal_file_left_by_an_interrupted_creation_is_removed(autojump_clock):
    disk = await disk_after(1)
    disk.files["wal-00000000000000000009.log"] = bytearray(SEGMENT_BYTES)
    disk.synced["wal-00000000000000000009.log"] = bytearray(SEGMENT_BYTES)
    disk.files["lost+found"] = bytearray()
    assert await replay(disk) == [0]
    assert sorted(disk.files) == ["lost+found", FIRST_FILE]


async def test_progress_is_reported_after_each_replayed_file(autojump_clock):
    disk = await disk_after(*[1] * 8)
    progress: list[int] = []
    await replay(disk, on_progress=progress.append)
    assert progress == [6, 8, 8]


@pytest.mark.parametrize("operation", ["list", "read", "truncate", "sync"])
async def test_a_disk_error_during_replay_raises_storage_failed(operation, autojump_clock):
    disk = (await disk_after(1)).crash()
    disk.fail(operation)
    with pytest.raises(StorageFailed, match="cannot replay it"):
        await replay(disk)


async def test_replay_yields_to_other_tasks(autojump_clock, monkeypatch):
    monkeypatch.setattr("kafscale.log.wal.local_replay.SLICE_BYTES", 1)
    disk = await disk_after(6)
    steps = []

    async def bystander() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            steps.append(len(handled))

    handled = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bystander)
        await make_wal(disk).replay(lambda entry: handled.append(entry.base_offset) is None)
        nursery.cancel_scope.cancel()
    assert len(set(steps)) > 3


@pytest.fixture
async def used_again(monkeypatch, autojump_clock) -> MemoryDisk:
    """A disk whose log goes on, after entry 18, in a file that held entries 1 to 6 before."""
    monkeypatch.setattr(
        "kafscale.log.wal.local_wal.PAGE_BYTES", 1
    )  # or the files would be overwritten by zeros at once
    disk = MemoryDisk()
    wal = make_wal(disk)
    async with trio.open_nursery() as nursery:
        await wal.replay(lambda entry: True)
        await nursery.start(wal.run)
        await nursery.start(wal.files.prepare)
        entries = [entry(offset) for offset in range(20)]
        for number, each in enumerate(entries):
            await wal.append(each).wait()
            if number in {8, 14}:  # a file is begun; the one before it is flushed
                wal.release(entries[number - 8].file, 6)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return disk


async def test_a_file_that_is_used_again_ends_with_its_new_entries(used_again, caplog):
    assert content(2) in used_again.files[LAST_FILE], "the old entries are there"
    assert await replay(used_again.crash()) == list(range(12, 20))
    assert not caplog.records


async def test_a_spare_file_is_removed_at_the_next_start(used_again):
    disk = used_again.crash()
    await disk.create("spare-wal-00000000000000000001.log", SEGMENT_BYTES, b"")
    assert await replay(disk) == list(range(12, 20))
    assert sorted(disk.files) == [f"wal-{number:020d}.log" for number in (3, 4)]


async def test_a_torn_tail_before_older_entries_is_cut_off(used_again, caplog):
    used_again.flip_bit(LAST_FILE, FILE_HEADER_BYTES + 2 * ENTRY_BYTES - 1)
    assert await replay(used_again) == list(range(12, 19))
    assert "entry 20 at" in caplog.text


@pytest.mark.parametrize("number", range(6))
async def test_damage_to_an_acknowledged_entry_before_a_reused_file_is_detected(number, used_again):
    used_again.flip_bit(f"wal-{3:020d}.log", FILE_HEADER_BYTES + number * ENTRY_BYTES + 5)
    with pytest.raises(DamagedObject, match=rf"entry {13 + number} "):
        await replay(used_again)


async def test_the_log_line_about_a_damaged_last_entry_mentions_a_possible_reply(autojump_clock, caplog):
    disk = await disk_after(1, 1)
    disk.flip_bit(FIRST_FILE, 64 + 64 + len(content(0)) + 70)
    assert await replay(disk) == [0]
    assert "or the disk has damaged it since, and it had one" in caplog.text
