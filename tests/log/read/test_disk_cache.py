"""The disk behind the memory cache: it saves GETs, keeps to its size, and whatever happens to it fails no fetch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.concurrency.byte_budget import ByteBudget
from kafscale.log.read.disk_cache import BLOCK_BYTES, SUFFIX, DiskCache
from kafscale.log.read.ranges import RangeReader
from kafscale.log.read.segment_cache import SegmentCache
from kafscale.store.base import ForwardingStore
from kafscale.store.memory import MemoryStore
from kafscale.store.paths import SegmentKey
from tests.devtools.fakes.segment_objects import batches_of_size

KEY = SegmentKey(topic="t", topic_id=bytes(16), partition=0, base_offset=0)
CONTENT = batches_of_size(500, 800)
PIECE_BYTES = 10_000
MEMORY_BYTES = 100_000
PATIENCE_SECONDS = 30


class CountingStore(ForwardingStore):
    """A store that counts the ranges that were read."""

    get_count = 0

    async def get_range(self, key, start, length_bytes):
        self.get_count += 1
        return await super().get_range(key, start, length_bytes)


@asynccontextmanager
async def reader_on(directory: Path, *, disk_bytes: int = 1 << 20) -> AsyncIterator[RangeReader]:
    store = CountingStore(MemoryStore())
    await store.put(KEY.key, [CONTENT])
    memory = SegmentCache(MEMORY_BYTES)
    disk = DiskCache(directory=directory, max_bytes=disk_bytes, memory=memory)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.run)
        yield RangeReader(store=store, cache=memory, budget=ByteBudget(1 << 20), disk=disk)
        nursery.cancel_scope.cancel()


async def read(reader: RangeReader, start: int, end: int) -> None:
    slices = await reader.read(KEY, start, end)
    assert slices is not None
    data = b"".join(slices.buffers)
    assert data
    assert data == CONTENT[start : start + len(data)]
    slices.release()


async def read_pieces(reader: RangeReader, count: int = 40) -> int:
    """One behind the other, at the disk's pace; returns how many were GETs."""
    before = reader.store.get_count
    for number in range(count):
        await read(reader, number * PIECE_BYTES, (number + 1) * PIECE_BYTES)
        await until(lambda: reader.cache.size_bytes <= 0.875 * MEMORY_BYTES or reader.disk.failed_count)
    return reader.store.get_count - before


async def until(holds: Callable[[], object]) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        while not holds():
            await trio.sleep(0.001)


def files_in(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*{SUFFIX}"))


async def test_data_without_room_in_memory_is_read_from_the_disk(tmp_path):
    async with reader_on(tmp_path / "cache") as reader:
        assert await read_pieces(reader) == 40
        assert len(files_in(tmp_path / "cache")) >= 30
        assert await read_pieces(reader) == 0
        assert reader.disk.hit_count >= 30
        await read(reader, 5_000, 25_000)  # in the middle of a file
        assert reader.store.get_count == 40
        assert reader.cache.size_bytes <= MEMORY_BYTES
        assert reader.budget.used_bytes == 0


async def test_the_disk_cache_keeps_its_size_limit_and_evicts_the_least_recent_first(tmp_path):
    limit = 10 * 3 * BLOCK_BYTES
    async with reader_on(tmp_path, disk_bytes=limit) as reader:
        await read_pieces(reader)
        await wait_all_tasks_blocked()
        assert 0 < reader.disk.size_bytes <= limit
        before = reader.store.get_count
        await read(reader, 0, PIECE_BYTES)
        assert reader.store.get_count == before + 1
        assert len(files_in(tmp_path)) <= 11  # one may wait to be removed


async def test_only_files_of_an_earlier_broker_are_removed(tmp_path):
    (tmp_path / f"0{SUFFIX}").write_bytes(b"stale")
    (tmp_path / "somebody.else").write_bytes(b"stays")
    async with reader_on(tmp_path):
        await until(lambda: not files_in(tmp_path))
        assert (tmp_path / "somebody.else").exists()


def flip_last(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: path.write_bytes(b"short"), flip_last], ids=["gone", "cut off", "damaged"]
)
async def test_a_damaged_cache_file_costs_a_get(tmp_path, damage):
    async with reader_on(tmp_path) as reader:
        await read_pieces(reader)
        files = files_in(tmp_path)
        for path in files:
            damage(path)
        assert await read_pieces(reader, 20) == 20
        assert reader.disk.failed_count == 20


async def test_a_directory_that_cannot_be_made_costs_gets_only(tmp_path, caplog):
    (tmp_path / "file").write_bytes(b"")
    async with reader_on(tmp_path / "file" / "cache") as reader:
        await until(lambda: reader.disk.failed_count)
        assert await read_pieces(reader) == 40
        assert await read_pieces(reader, 10) == 10
        assert "does without" in caplog.text


async def test_a_disk_that_is_full_costs_gets_only(tmp_path, monkeypatch):
    def write_bytes(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    async with reader_on(tmp_path) as reader:
        assert await read_pieces(reader) == 40
        assert await read_pieces(reader, 10) == 10
        assert reader.disk.failed_count == 1  # and then it waits for a while before it tries again
        assert files_in(tmp_path) == []
        assert reader.cache.size_bytes <= MEMORY_BYTES


async def test_files_of_a_deleted_segment_are_forgotten(tmp_path):
    async with reader_on(tmp_path) as reader:
        await read_pieces(reader)
        reader.cache.forget(KEY)
        assert reader.disk.size_bytes == 0
        assert await read_pieces(reader, 10) == 10
