import pytest
import trio
import trio.testing

from kafscale.errors import NotFound
from kafscale.store.directory import Directory
from kafscale.store.file import THREADS_MAX_COUNT, FileStore
from kafscale.store.slices import SLICE_BYTES


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
