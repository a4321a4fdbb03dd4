"""The note on which files a local log must have: what a start finds missing, and what it must not take for missing."""

from __future__ import annotations

import attrs
import pytest
import trio

from kafscale.errors import DamagedObject, StorageFull
from kafscale.log.wal.local_replay import WalExtent
from kafscale.testing.disk import MemoryDisk
from tests.log.wal.memory_wal import Log


@attrs.define
class MemoryExtents:
    """A note in memory."""

    extent: WalExtent | None = None
    write_count: int = 0
    is_full: bool = False

    async def read(self) -> WalExtent | None:
        await trio.lowlevel.checkpoint()
        return self.extent

    async def write(self, extent: WalExtent) -> None:
        await trio.lowlevel.checkpoint()
        if self.is_full:
            raise StorageFull("full")
        self.extent = extent
        self.write_count += 1


async def run(
    disk: MemoryDisk, extents: MemoryExtents, count: int = 0, *, begin: int = 0, released: bool = False
) -> Log:
    """Replay a log, append entries to it, and stop it; `released` has segments have all of them."""
    log = Log(disk, extents=extents)
    async with trio.open_nursery() as nursery:
        await log.start(nursery, needed=lambda _: not released)
        for offset in range(begin, begin + count):
            await log.append(offset).wait()
        if released:
            for entry in log.durable:
                log.wal.release(entry.file)
        nursery.cancel_scope.cancel()
    return log


async def found_missing(disk: MemoryDisk, extents: MemoryExtents) -> tuple[list[int], int]:
    log = Log(disk, extents=extents)
    await log.replay()
    return log.wal.files.extents.missing, log.wal.files.extents.missing_count


async def entry_count(disk: MemoryDisk) -> int:
    """Count the entries that the files have, whichever are missing."""
    log = Log(disk.crash(), extents=MemoryExtents(WalExtent(files=range(1, 100), last_number=100)))
    await log.replay()
    return len(log.replayed)


def files(disk: MemoryDisk) -> list[str]:
    return sorted(name for name in disk.files if name.startswith("wal-"))


def delete(disk: MemoryDisk, *names: str) -> None:
    for name in names:
        del disk.files[name], disk.synced[name]


async def test_files_are_noted_before_they_are_used_and_left_out_before_they_are_deleted(autojump_clock):
    disk, extents = MemoryDisk(), MemoryExtents()
    log = Log(disk, extents=extents)
    async with trio.open_nursery() as nursery:
        await log.start(nursery)
        for offset in range(100):
            await log.append(offset).wait()
            assert extents.extent is not None
            assert {file.header.number for file in log.wal.files.in_use} <= {*extents.extent.files}
        for entry in log.durable[:60]:
            log.wal.release(entry.file)
        await trio.sleep(1)
        assert {*extents.extent.files} == {int(name[4:24]) for name in files(disk)}
        nursery.cancel_scope.cancel()
    assert extents.write_count < 20  # two for each file, and none for an entry
    assert await found_missing(disk, extents) == ([], 0)


@pytest.mark.parametrize("which", [slice(None), slice(1), slice(2, 3), slice(-1, None)])
async def test_files_that_have_gone_were_not_missed(autojump_clock, caplog, which):
    disk, extents = MemoryDisk(), MemoryExtents()
    await run(disk, extents, 100)
    before = await entry_count(disk)
    used = [name for name in files(disk) if int(name[4:24]) in extents.extent.files]
    gone = used[which]
    delete(disk, *gone)
    missing, count = await found_missing(disk, extents)
    assert missing == [int(name[4:24]) for name in gone]
    assert count == before - await entry_count(disk)
    assert "is not whole" in caplog.text


async def test_a_last_file_that_is_cut_after_a_stop_in_order_is_missed(autojump_clock, caplog):
    disk, extents = MemoryDisk(), MemoryExtents()
    log = await run(disk, extents, 10)
    entry = log.durable[6]
    await disk.truncate(entry.file.name, entry.position - 60)
    assert await found_missing(disk, extents) == ([], 4)
    assert "has been cut off: at least 4 acknowledged entries" in caplog.text


async def test_nothing_is_missed_where_segments_have_all(autojump_clock):
    disk, extents = MemoryDisk(), MemoryExtents()
    await run(disk, extents, 100, released=True)
    delete(disk, *files(disk))
    assert await found_missing(disk, extents) == ([], 0)


async def test_a_settled_loss_is_reported_once_and_later_files_are_kept(autojump_clock, caplog):
    disk, extents = MemoryDisk(), MemoryExtents()
    await run(disk, extents, 100)
    delete(disk, files(disk)[2])
    log = Log(disk, extents=extents)
    async with trio.open_nursery() as nursery:
        await log.start(nursery)
        assert log.wal.has_lost_entries
        await log.wal.settle_loss()
        assert not log.wal.has_lost_entries
        for offset in range(100, 120):
            await log.append(offset).wait()
        nursery.cancel_scope.cancel()
    caplog.clear()
    assert await found_missing(disk, extents) == ([], 0)
    assert caplog.text == ""


async def test_a_crash_before_a_loss_is_settled_does_not_hide_the_loss(autojump_clock):
    disk, extents = MemoryDisk(), MemoryExtents()
    await run(disk, extents, 100)
    delete(disk, *files(disk)[-3:])
    first = await found_missing(disk, extents)
    assert first[0]
    assert await found_missing(disk, extents) == first


async def test_an_older_extent_note_does_not_report_missing_files(autojump_clock, caplog):
    disk, extents = MemoryDisk(), MemoryExtents()
    await run(disk, extents, 40)
    older = attrs.evolve(extents)
    await run(disk, extents, 40, begin=40, released=True)
    assert await found_missing(disk, older) == ([], 0)
    assert "it is an older copy" in caplog.text


async def test_a_flipped_bit_is_damage_as_before(autojump_clock):
    disk, extents = MemoryDisk(), MemoryExtents()
    log = await run(disk, extents, 100)
    disk.flip_bit(files(disk)[1], log.durable[0].position + 20)
    with pytest.raises(DamagedObject):
        await found_missing(disk, extents)


async def test_appends_resume_when_the_disk_has_room_for_the_extent_note(autojump_clock):
    disk, extents = MemoryDisk(), MemoryExtents()
    log = Log(disk, extents=extents)
    async with trio.open_nursery() as nursery:
        await log.start(nursery)
        extents.is_full = True
        rounds = [log.append(offset) for offset in range(60)]
        await trio.sleep(5)
        assert not rounds[-1].done
        extents.is_full = False
        await rounds[-1].wait()
        nursery.cancel_scope.cancel()
    assert await found_missing(disk, extents) == ([], 0)
