"""Which version a part of the write-ahead log has: one that who does not know transactions refuses, if it has any."""

from __future__ import annotations

import attrs
import pytest

from kafscale.config import Durability
from kafscale.errors import DamagedObject
from kafscale.formats import wal_entries, wal_objects
from kafscale.formats.wal_entries import FILE_HEADER_BYTES, FileHeader, decode_file_header, encode_file_header, scan
from kafscale.formats.wal_objects import decode_object
from kafscale.log.wal.disk import Disk
from kafscale.store.memory import MemoryStore
from kafscale.testing.disk import MemoryDisk
from kafscale.wire.batch_header import parse_header
from tests.devtools.fakes.memory_log import append_nowait, memory_log
from tests.devtools.fakes.transactions import (
    NOW_MS,
    abort,
    commit,
    enrolled_nowait,
    read_committed,
    send,
    transactional,
)

SETTINGS = {"flush_interval_seconds": 1e9}


@attrs.frozen
class Part:
    """A file or an object of the log, and whether each of its entries is of a transaction."""

    version: int
    are_transactional: list[bool]


def _version(content: bytes) -> int:
    return int.from_bytes(content[8:10], "big")


def _are_transactional(entries) -> list[bool]:
    batches = (entry for entry in entries if entry.kind == wal_entries.RECORD_BATCH)
    return [parse_header(memoryview(entry.data)).is_transactional for entry in batches]


async def files_of(disk: Disk) -> list[Part]:
    """The files that have entries, oldest first."""
    found = []
    for name, size_bytes in sorted((await disk.list()).items()):
        content = await disk.read(name, 0, size_bytes)
        header = decode_file_header(name, content)
        if name.startswith("wal-") and header is not None and header.started:
            entries = list(scan(memoryview(content), FILE_HEADER_BYTES, salt=header.salt))
            assert header.has_transactions == (_version(content) == 2)
            found.append(Part(_version(content), _are_transactional(entries)))
    return found


async def objects_of(store: MemoryStore) -> list[Part]:
    """The objects that have entries, in order."""
    found = []
    async for page in store.list("_kafscale/"):
        for info in page:
            if info.key.endswith(".wal"):
                content = bytes((await store.get(info.key)).data)
                header, entries = decode_object(info.key, content)
                assert header.has_transactions == (_version(content) == 2)
                if entries:
                    found.append(Part(_version(content), _are_transactional(entries)))
    return found


async def test_a_file_without_transactions_can_be_read_by_versions_that_know_none(autojump_clock):
    disk, store = MemoryDisk(), MemoryStore()
    async with memory_log(store, disk, **SETTINGS) as log:
        for number in range(3):
            await log.append(log.partition(), b"%d" % number)
        assert await files_of(disk) == [Part(1, [False] * 3)]


async def test_the_first_transactional_batch_begins_a_file_of_version_2(autojump_clock):
    disk, store = MemoryDisk(), MemoryStore()
    async with memory_log(store, disk, **SETTINGS) as log:
        partition = log.partition()
        await log.append(partition, b"plain")
        await send(partition, b"aborted")
        await abort(partition)
        await log.append(partition, b"plain too")
        assert await files_of(disk) == [Part(1, [False]), Part(2, [True, True, False])]
        disk = disk.crash()
    async with memory_log(store, disk, leader_epoch=2, **SETTINGS) as log:
        assert await read_committed(log, log.partition()) == [b"plain", b"plain too"]
        await log.append(log.partition(), b"later")
        assert [each.version for each in await files_of(disk)] == [1, 2, 1]


async def test_an_empty_wal_file_becomes_version_2_at_its_first_transactional_batch(autojump_clock):
    disk, store = MemoryDisk(), MemoryStore()
    async with memory_log(store, disk, **SETTINGS) as log:
        await send(log.partition(), b"first")
        await commit(log.partition())
        assert await files_of(disk) == [Part(2, [True, True])]


async def test_a_round_of_both_kinds_is_in_one_file(autojump_clock):
    disk, store = MemoryDisk(), MemoryStore()
    async with memory_log(store, disk, **SETTINGS) as log:
        partition = log.partition()
        await log.append(partition, b"alone")
        append_nowait(partition, b"plain", now_ms=NOW_MS)
        batch = enrolled_nowait(partition, transactional(b"of a transaction"))
        assert batch.round is not None
        await batch.round.wait()
        assert await files_of(disk) == [Part(1, [False]), Part(2, [False, True])]


async def test_only_wal_objects_with_transactions_have_version_2(autojump_clock):
    disk, store = MemoryDisk(), MemoryStore()
    async with memory_log(store, disk, durability=Durability.S3_WAL, **SETTINGS) as log:
        partition = log.partition()
        await log.append(partition, b"plain")
        await send(partition, b"aborted")
        await abort(partition)
        await log.append(partition, b"plain too")
        assert await objects_of(store) == [Part(1, [False]), Part(2, [True]), Part(2, [True]), Part(1, [False])]


def test_a_later_wal_version_is_refused_with_advice_to_start_that_version(monkeypatch):
    monkeypatch.setattr(wal_entries, "VERSION_WITH_TRANSACTIONS", 3)
    monkeypatch.setattr(wal_objects, "VERSION_WITH_TRANSACTIONS", 3)
    file = encode_file_header(FileHeader(1, 1, 0, 0, has_transactions=True))
    body = wal_objects.ObjectHeader(
        salt=0, epoch=1, entry_count=1, number=1, durable_number=0, sequence=0, body_bytes=0, has_transactions=True
    )
    written = wal_objects.encode_header(body)
    monkeypatch.undo()
    for decode, content in ((decode_file_header, file), (wal_objects.decode_header, written)):
        with pytest.raises(DamagedObject, match=r"name: .*version 3 is not known, .*start that version"):
            decode("name", content)
