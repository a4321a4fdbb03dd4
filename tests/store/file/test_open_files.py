"""What the kernel tells of the page cache, and when a file is closed."""

import os
import platform

import pytest

from kafscale.store.file import open_files
from kafscale.store.file.open_files import OpenFile, is_cached

needs_cachestat = pytest.mark.skipif(
    tuple(int(number) for number in platform.release().split("-")[0].split(".")[:2]) < (6, 5),
    reason="Linux tells since 6.5 what is in the page cache",
)


@needs_cachestat
@pytest.mark.parametrize(("start", "length_bytes"), [(0, 1), (0, 1 << 20), (4095, 2), (12_345, 100_000)])
def test_a_newly_written_range_is_in_the_page_cache(tmp_path, start, length_bytes):
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    with open(tmp_path / "file", "rb") as file:
        assert is_cached(file.fileno(), start, length_bytes)


@needs_cachestat
def test_a_hole_that_was_never_read_is_not(tmp_path):
    (tmp_path / "file").touch()
    os.truncate(tmp_path / "file", 1 << 20)
    with open(tmp_path / "file", "rb") as file:
        assert not is_cached(file.fileno(), 0, 1 << 20)


def test_nothing_is_where_the_kernel_does_not_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(open_files, "_syscall", lambda *args: -1)
    (tmp_path / "file").write_bytes(b"x")
    with open(tmp_path / "file", "rb") as file:
        assert not is_cached(file.fileno(), 0, 1)


def test_the_last_user_closes_a_file(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    file = OpenFile(os.open(tmp_path / "file", os.O_RDONLY), 1)
    file.retain()
    file.release()
    assert os.fstat(file.descriptor).st_size == 1
    file.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file.descriptor)
