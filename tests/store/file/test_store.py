import errno
import os

import pytest
import trio
import trio.testing

from kafscale.errors import NotFound
from kafscale.store.file.directory import Directory
from kafscale.store.file.slices import SLICE_BYTES
from kafscale.store.file.store import READ_AT_ONCE_MAX_BYTES, THREADS_MAX_COUNT, FileStore


async def test_a_cancelled_large_write_gives_up_between_two_slices(tmp_path):
    directory = Directory.open(tmp_path)
    store = FileStore(directory)
    async with trio.open_nursery() as nursery:
        with directory._writer.lock:  # the writer's thread can't finish a slice
            nursery.start_soon(store.put, "key", [bytes(8 * SLICE_BYTES)])
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    with pytest.raises(NotFound):
        await store.get("key")
    assert list((tmp_path / ".kafscale" / "staging").iterdir()) == []


async def test_reads_do_not_wait_for_slow_writes(tmp_path):
    directory = Directory.open(tmp_path)
    store = FileStore(directory)
    await store.put("small", [b"data"])
    async with trio.open_nursery() as nursery:
        with directory._writer.lock:
            for number in range(2 * THREADS_MAX_COUNT):
                nursery.start_soon(store.put, f"large/{number}", [bytes(2 * SLICE_BYTES)])
            await trio.testing.wait_all_tasks_blocked()
            assert (await store.get("small")).data == b"data"
            assert [page async for page in store.list("large/")] == []
    [page] = [page async for page in store.list("large/")]
    assert len(page) == 2 * THREADS_MAX_COUNT


async def no_thread(*args, **kwargs):
    pytest.fail("a thread was asked")


def refuse_with(number):
    def preadv(descriptor, buffers, position, flags):
        raise OSError(number, os.strerror(number))

    return preadv


def read_half(descriptor, buffers, position, flags):
    """As if the page cache had only these pages."""
    buffers[0][:] = bytes(len(buffers[0]))
    return len(buffers[0]) // 2


async def test_a_range_that_the_page_cache_has_is_read_without_a_thread(tmp_path, monkeypatch):
    store = FileStore(Directory.open(tmp_path))
    await store.put("key", [b"0123456789"])
    (tmp_path / "key").read_bytes()
    monkeypatch.setattr(trio.to_thread, "run_sync", no_thread)
    part = await store.get_range("key", 3, 4)
    assert (bytes(part.data), part.object_size_bytes) == (b"3456", 10)
    assert bytes((await store.get_range("key", 8, 4)).data) == b"89"
    with pytest.raises(NotFound):
        await store.get_range("another", 0, 1)


@pytest.mark.parametrize("preadv", [refuse_with(errno.EAGAIN), refuse_with(errno.EOPNOTSUPP), read_half])
async def test_a_range_that_the_page_cache_lacks_is_read_in_a_thread(tmp_path, monkeypatch, preadv):
    store = FileStore(Directory.open(tmp_path))
    await store.put("key", [b"0123456789"])
    monkeypatch.setattr(os, "preadv", preadv)
    assert (await store.get_range("key", 3, 4)).data == b"3456"


async def test_a_range_that_takes_long_to_copy_is_read_in_a_thread(tmp_path, monkeypatch):
    store = FileStore(Directory.open(tmp_path))
    await store.put("key", [bytes(READ_AT_ONCE_MAX_BYTES + 1)])
    monkeypatch.setattr(os, "preadv", refuse_with(errno.EIO))
    assert len((await store.get_range("key", 0, READ_AT_ONCE_MAX_BYTES + 1)).data) == READ_AT_ONCE_MAX_BYTES + 1
