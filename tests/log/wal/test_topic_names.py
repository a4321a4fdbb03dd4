"""The names of topics in the files of a local write-ahead log, so that each file can be read without the metadata."""

from __future__ import annotations

import pytest
import trio

from kafscale.formats.wal_entries import (
    ENTRY_HEADER_BYTES,
    FILE_HEADER_BYTES,
    RECORD_BATCH,
    TOPIC_NAME,
    WalEntry,
    decode_file_header,
    scan,
)
from kafscale.testing.disk import MemoryDisk
from tests.log.wal.memory_wal import LEADER_EPOCH, SEGMENT_BYTES, Log, content

TOPICS_COUNT = 5


def topic_id(number: int) -> bytes:
    return number.to_bytes(16)


def entry(number: int, offset: int, size: int = 100) -> WalEntry:
    return WalEntry(topic_id(number), 0, LEADER_EPOCH, offset, content(offset, size), owner=f"topic-{number}")


def named_log(disk: MemoryDisk, **options) -> Log:
    return Log(disk, topic_name=lambda entry: entry.owner, **options)


def names_before_batches(disk: MemoryDisk) -> list[int]:
    """Return the offsets of all batches, each of which comes behind the name of its topic in the same file."""
    found: list[int] = []
    for name in sorted(name for name in disk.files if name.startswith("wal-")):
        file = bytes(disk.files[name])
        header = decode_file_header(name, file)
        assert header is not None
        named: dict[bytes, bytes] = {}
        for each in scan(memoryview(file), FILE_HEADER_BYTES, salt=header.salt):
            if each.kind == TOPIC_NAME:
                assert each.topic_id not in named, "a name that the file has already"
                named[each.topic_id] = bytes(each.data)
            else:
                assert each.kind == RECORD_BATCH
                assert named[each.topic_id] == b"topic-%d" % int.from_bytes(each.topic_id)
                found.append(each.base_offset)
    return found


@pytest.mark.parametrize("together", [1, 7, 100])
async def test_each_file_tells_the_name_of_a_topic_before_its_first_batch(autojump_clock, together):
    log = named_log(MemoryDisk(sync_seconds=0.001))
    async with trio.open_nursery() as nursery:
        await log.start(nursery)
        for begin in range(0, 100, together):
            rounds = [
                log.wal.append(entry(each % TOPICS_COUNT, each)) for each in range(begin, min(100, begin + together))
            ]
            await rounds[-1].wait()
        nursery.cancel_scope.cancel()
    assert len(log.wal.files.in_use) > 2
    assert names_before_batches(log.disk) == list(range(100))
    assert [each.base_offset for each in log.durable] == list(range(100))
    assert log.wal._entry_count == log.wal.pending_count == 100
    for each in log.durable:
        assert await log.wal.read(each.file, [(each.position, 100)]) == content(each.base_offset, 100)
    again = named_log(log.disk)
    replayed: list[int] = []
    await again.wal.replay(lambda each: not replayed.append(each.base_offset))
    assert replayed == list(range(100))
    assert again.wal.topic_names == {topic_id(number): f"topic-{number}" for number in range(TOPICS_COUNT)}


async def test_an_entry_with_no_room_for_the_topic_name_gets_a_larger_file(autojump_clock):
    log = named_log(MemoryDisk())
    async with trio.open_nursery() as nursery:
        await log.start(nursery)
        size = SEGMENT_BYTES - FILE_HEADER_BYTES - ENTRY_HEADER_BYTES
        for each in range(3):
            await log.wal.append(entry(each, each, size)).wait()
        nursery.cancel_scope.cancel()
    assert names_before_batches(log.disk) == [0, 1, 2]


async def test_a_round_rewritten_after_a_full_disk_repeats_its_topic_names(autojump_clock):
    disk = MemoryDisk()
    log = named_log(disk)
    async with trio.open_nursery() as nursery:
        await log.start(nursery)
        disk.fail("write", error_number=28)
        await log.wal.append(entry(1, 0)).wait()
        await log.wal.append(entry(1, 1)).wait()
        nursery.cancel_scope.cancel()
    assert names_before_batches(disk) == [0, 1]
