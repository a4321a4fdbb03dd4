"""One contract for the real disk and the one in memory."""

import errno
import os

import pytest

from kafscale.log.wal import disk as disk_module
from kafscale.log.wal.disk import RealDisk
from kafscale.testing.disk import MemoryDisk


@pytest.fixture(params=["real", "memory"])
def disk(request, tmp_path):
    made = RealDisk(tmp_path / "data" / "wal") if request.param == "real" else MemoryDisk()
    yield made
    made.close()


async def test_a_new_file_is_zeros_behind_its_header(disk):
    assert await disk.list() == {}
    await disk.create("a", 1000, b"header")
    assert await disk.list() == {"a": 1000}
    assert await disk.read("a", 0, 5000) == b"header" + bytes(994)


async def test_buffers_are_written_one_behind_the_other(disk):
    await disk.list()
    await disk.create("a", 100, b"")
    await disk.write_and_sync("a", [b"one", memoryview(b"two"), bytearray(b"three")], 10)
    assert await disk.read("a", 9, 13) == b"\0onetwothree\0"


async def test_a_write_past_the_end_makes_the_file_longer(disk):
    await disk.list()
    await disk.create("a", 10, b"")
    await disk.write_and_sync("a", [b"x" * 20], 5)
    assert await disk.list() == {"a": 25}


async def test_more_buffers_than_one_system_call_takes_are_written(disk):
    await disk.list()
    await disk.create("a", 10_000, b"")
    buffers = [bytes([index % 251]) * 3 for index in range(3000)]
    await disk.write_and_sync("a", buffers, 1)
    assert await disk.read("a", 1, 9000) == b"".join(buffers)


async def test_reading_ends_at_the_end(disk):
    await disk.list()
    await disk.create("a", 10, b"0123456789")
    assert await disk.read("a", 8, 10) == b"89"
    assert await disk.read("a", 20, 10) == b""


async def test_a_file_is_cut_and_deleted(disk):
    await disk.list()
    await disk.create("a", 10, b"0123456789")
    await disk.truncate("a", 4)
    assert await disk.read("a", 0, 10) == b"0123"
    await disk.delete("a")
    assert await disk.list() == {}


async def test_a_reused_file_keeps_the_bytes_after_its_new_header(disk):
    await disk.list()
    await disk.create("a", 10, b"0123456789")
    await disk.rename("a", "spare")
    assert await disk.list() == {"spare": 10}
    await disk.create("b", 10, b"new", reuse="spare")
    assert await disk.list() == {"b": 10}
    assert await disk.read("b", 0, 10) == b"new3456789"
    await disk.write_and_sync("b", [b"xy"], 8)
    assert await disk.read("b", 0, 10) == b"new34567xy"
    await disk.delete("b")


async def test_a_file_of_an_earlier_process_can_be_written_to(tmp_path):
    first = RealDisk(tmp_path)
    await first.create("a", 10, b"0123456789")
    first.close()
    second = RealDisk(tmp_path)
    await second.write_and_sync("a", [b"xy"], 2)
    assert await second.read("a", 0, 10) == b"01xy456789"
    second.close()


async def test_partial_writes_are_continued(tmp_path, monkeypatch):
    real_pwritev = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: real_pwritev(fd, [b"".join(buffers)[:7]], at))
    disk = RealDisk(tmp_path)
    await disk.create("a", 100, b"")
    await disk.write_and_sync("a", [b"0123456789", b"", b"abc", b"defghijklm"], 3)
    assert await disk.read("a", 3, 23) == b"0123456789abcdefghijklm"
    disk.close()


async def test_a_write_without_effect_is_an_error_and_not_an_endless_loop(tmp_path, monkeypatch):
    disk = RealDisk(tmp_path)
    await disk.create("a", 100, b"")
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: 0)
    with pytest.raises(OSError, match="a write had no effect"):
        await disk.write_and_sync("a", [b"x"], 0)
    disk.close()


async def test_nothing_is_left_of_a_file_that_could_not_be_allocated(tmp_path, monkeypatch):
    def full(fd, offset, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk_module.os, "posix_fallocate", full)
    disk = RealDisk(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        await disk.create("a", 100, b"")
    assert await disk.list() == {}


async def test_a_half_made_file_is_deleted_at_the_next_attempt(tmp_path, monkeypatch):
    """Where there is no room to sync the directory, the file has gone, or has its new name, already."""
    disk = RealDisk(tmp_path)
    await disk.create("a", 100, b"")
    await disk.create("b", 100, b"")

    def full(directory):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(disk_module, "_sync_directory", full)
        with pytest.raises(OSError, match="No space left"):
            await disk.delete("a")
        with pytest.raises(OSError, match="No space left"):
            await disk.rename("b", "c")
    await disk.delete("a")
    await disk.delete("b")
    assert await disk.list() == {"c": 100}
    disk.close()


async def test_the_memory_disk_loses_unsynced_writes_in_a_crash_and_fails_on_request():
    disk = MemoryDisk(free_bytes=150)
    await disk.create("a", 100, b"header")
    disk.fail("sync", after=1)
    await disk.write_and_sync("a", [b"kept"], 10)
    with pytest.raises(OSError, match="error"):
        await disk.write_and_sync("a", [b"lost"], 20)
    assert await disk.read("a", 20, 4) == b"lost"
    assert await disk.crash().read("a", 10, 14) == b"kept" + bytes(10)
    assert await disk.crash(torn_bytes=2).read("a", 10, 14) == b"kept" + bytes(6) + b"lo" + bytes(2)
    with pytest.raises(OSError, match="No space left"):
        await disk.create("b", 100, b"")


async def test_a_file_that_goes_while_the_directory_is_listed_is_left_out(tmp_path):
    """As another process sees it, which looks at the log of a live broker."""
    (tmp_path / "there").write_bytes(b"abc")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")  # found by the listing, and not by the look at its size
    assert await RealDisk(tmp_path).list() == {"there": 3}
