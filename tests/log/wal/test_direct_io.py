import ctypes
import errno
import os
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from kafscale.log.wal import direct_io
from kafscale.log.wal.direct_io import AT_ONCE_MAX_COUNT, PAGE_BYTES, SLICE_BYTES, DirectFile, DirectWriter
from kafscale.log.wal.disk import RealDisk
from kafscale.testing.disk import MemoryDisk

FILE_BYTES = 8 << 20
SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"\xee" * FILE_BYTES)
    return path


@pytest.fixture
def writer():
    writer = DirectWriter.open()
    if writer is None:
        pytest.skip("the kernel has no asynchronous I/O")
    yield writer
    writer.close()


@pytest.fixture
def file(writer, path):
    file = writer.open_file(str(path))
    if file is None:
        pytest.skip("the file system has no direct writes")
    yield file
    file.close()


async def test_pages_are_written_from_many_buffers_and_nothing_else_is(writer, file, path):
    buffers = [b"a" * 100, memoryview(b"b" * 3000), bytearray(b"c" * (2 * PAGE_BYTES - 3100)), b""]
    assert await writer.write(file, buffers, PAGE_BYTES)
    joined = b"".join(buffers)
    assert path.read_bytes() == b"\xee" * PAGE_BYTES + joined + b"\xee" * (FILE_BYTES - 3 * PAGE_BYTES)


async def test_a_direct_write_continues_in_the_page_where_the_last_write_ended(writer, file, path):
    assert await writer.write(file, [b"a" * 5000, bytes(2 * PAGE_BYTES - 5000)], 0)
    assert await writer.write(file, [b"b" * 10, bytes(2 * PAGE_BYTES - 5010)], 5000)
    assert await writer.write(file, [b"c" * PAGE_BYTES, bytes(2 * PAGE_BYTES - 5010)], 5010)
    assert path.read_bytes()[: 3 * PAGE_BYTES] == (b"a" * 5000 + b"b" * 10 + b"c" * PAGE_BYTES).ljust(
        3 * PAGE_BYTES, b"\0"
    )


async def test_a_write_of_many_slices(writer, file, path):
    content = Random(1).randbytes(3 * SLICE_BYTES + PAGE_BYTES)
    assert await writer.write(file, [content[:100], content[100 : 2 * SLICE_BYTES], content[2 * SLICE_BYTES :]], 0)
    assert path.read_bytes()[: len(content)] == content
    assert await writer.write(file, [b"x" * 96], len(content) - 96)
    assert path.read_bytes()[: len(content)] == content[:-96] + b"x" * 96


async def test_an_unaligned_write_is_refused_before_anything_is_written(writer, file, path):
    assert not await writer.write(file, [b"short of a page"], 0)
    assert not await writer.write(file, [], 0)
    assert not await writer.write(file, [b"x" * (PAGE_BYTES - 10)], 10)  # nobody knows the ten bytes before
    assert path.read_bytes() == b"\xee" * FILE_BYTES


async def test_a_refused_direct_write_invalidates_the_cached_last_page(writer, file, path):
    assert await writer.write(file, [b"a" * 10, bytes(PAGE_BYTES - 10)], 0)
    assert not await writer.write(file, [b"b" * 10], 10)
    with path.open("rb+") as other:
        other.write(b"a" * 10 + b"b" * 10)  # as somebody else will have done then
    assert not await writer.write(file, [b"c" * (PAGE_BYTES - 20)], 20)
    assert path.read_bytes()[:20] == b"a" * 10 + b"b" * 10


async def test_a_started_direct_write_completes_despite_cancellation(writer, file, path):
    with trio.CancelScope() as scope:
        scope.cancel()
        await writer.write(file, [b"a" * PAGE_BYTES], 0)
    assert path.read_bytes()[:1] == b"\xee"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.write, file, [b"b" * 3 * SLICE_BYTES], 0)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert path.read_bytes()[: 3 * SLICE_BYTES] == b"b" * 3 * SLICE_BYTES


async def test_an_error_of_the_kernel_is_raised(writer, path):
    file = DirectFile(os.open(path, os.O_RDONLY | os.O_DIRECT))
    with pytest.raises(OSError, match="Bad file descriptor"):
        await writer.write(file, [bytes(PAGE_BYTES)], 0)
    file.close()


@pytest.mark.parametrize(("error_number", "usable"), [(errno.EINVAL, False), (errno.EAGAIN, True)])
async def test_the_disk_falls_back_to_a_thread_if_the_kernel_refuses_a_direct_write(
    tmp_path, monkeypatch, error_number, usable
):
    real_call = DirectWriter._call

    def call(self, name, *arguments):
        if name != direct_io._SUBMIT:
            return real_call(self, name, *arguments)
        ctypes.set_errno(error_number)
        return -1

    disk = RealDisk(tmp_path)
    await disk.create("a", FILE_BYTES, b"")
    await disk.write_and_sync("a", [b"a" * 10, bytes(PAGE_BYTES - 10)], 0)
    if disk._direct is None or not disk._direct.usable:
        pytest.skip("no direct writes here")
    monkeypatch.setattr(DirectWriter, "_call", call)
    await disk.write_and_sync("a", [b"b" * PAGE_BYTES, bytes(PAGE_BYTES - 10)], 10)
    assert disk._direct.usable is usable
    monkeypatch.undo()
    await disk.write_and_sync("a", [b"c" * PAGE_BYTES], 2 * PAGE_BYTES)
    assert (
        await disk.read("a", 0, 3 * PAGE_BYTES)
        == (b"a" * 10 + b"b" * PAGE_BYTES).ljust(2 * PAGE_BYTES, b"\0") + b"c" * PAGE_BYTES
    )
    disk.close()


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="needs a file system in memory")
async def test_a_file_system_that_makes_the_caller_wait_is_written_by_threads():
    directory = SHARED_MEMORY / f"kafscale-test-{os.getpid()}"
    disk = RealDisk(directory)
    await disk.list()
    try:
        await disk.create("a", FILE_BYTES, b"")
        for number in range(AT_ONCE_MAX_COUNT + 2):
            await disk.write_and_sync("a", [bytes([number]) * PAGE_BYTES], number * PAGE_BYTES)
        assert disk._direct is None or not disk._direct.usable
        content = await disk.read("a", 0, (AT_ONCE_MAX_COUNT + 2) * PAGE_BYTES)
        assert content == b"".join(bytes([number]) * PAGE_BYTES for number in range(AT_ONCE_MAX_COUNT + 2))
    finally:
        await disk.delete("a")
        disk.close()
        directory.rmdir()


@pytest.mark.parametrize("seed", range(5))
async def test_direct_and_threaded_writes_leave_the_same_bytes_as_the_memory_disk(tmp_path, seed):
    random = Random(seed)
    disks = [RealDisk(tmp_path), MemoryDisk()]
    for disk in disks:
        await disk.list()
        await disk.create("a", FILE_BYTES, b"header")
    position = 0
    while position < FILE_BYTES // 2:
        size_bytes = random.choice([1, 50, 4000, PAGE_BYTES, 70_000, SLICE_BYTES - 1, SLICE_BYTES + 5000])
        data = random.randbytes(size_bytes)
        end = position + size_bytes
        padding = bytes(-end % PAGE_BYTES) if random.random() < 0.9 else b""
        cut = random.randrange(size_bytes)
        for disk in disks:
            await disk.write_and_sync("a", [data[:cut], data[cut:], padding], position)
        position = end
    real, memory = [await disk.read("a", 0, FILE_BYTES) for disk in disks]
    assert real == memory
    disks[0].close()
