import errno
import fcntl
import os

import pytest

from kafscale.store.file import slices
from kafscale.store.file.slices import SLICE_BYTES, SliceWriter

SIZES = [0, 5, SLICE_BYTES - 1, SLICE_BYTES, SLICE_BYTES + 1, 3 * SLICE_BYTES, 3 * SLICE_BYTES + 4097]


def written(path, parts):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    SliceWriter().write(descriptor, parts, lambda: None)
    os.close(descriptor)
    return path.read_bytes()


def refuse_direct_writes(monkeypatch):
    def set_flags(descriptor, command, flags):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(slices.fcntl, "fcntl", set_flags)


def refuse_to_write_directly(monkeypatch):
    """As a file system whose blocks are larger than our pages."""
    original = os.writev

    def writev(descriptor, buffers):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return original(descriptor, buffers)

    monkeypatch.setattr(os, "writev", writev)


def write_the_second_slice_in_part(monkeypatch):
    """As a disk that is about to be full."""
    original = os.writev
    calls = iter(range(1_000_000))

    def writev(descriptor, buffers):
        if next(calls) == 1 and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            return original(descriptor, [memoryview(buffers[0])[: SLICE_BYTES // 2]])
        return original(descriptor, buffers)

    monkeypatch.setattr(os, "writev", writev)


CASES = {
    "direct": lambda monkeypatch: None,
    "no direct writes": refuse_direct_writes,
    "other blocks": refuse_to_write_directly,
    "short": write_the_second_slice_in_part,
}


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("case", CASES)
def test_a_file_is_its_parts_joined(tmp_path, monkeypatch, case, size_bytes):
    CASES[case](monkeypatch)
    data = os.urandom(size_bytes)
    parts = [data[:1000], bytearray(data[1000:5000]), memoryview(bytearray(data))[5000:]]
    assert written(tmp_path / "file", parts) == data


def test_more_parts_than_one_system_call_takes_are_written(tmp_path):
    data = os.urandom(SLICE_BYTES + 3000)
    parts = [data[start : start + 100] for start in range(0, len(data), 100)]
    assert written(tmp_path / "file", parts) == data


def test_a_full_disk_raises_its_os_error(tmp_path, monkeypatch):
    def writev(descriptor, buffers):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", writev)
    with pytest.raises(OSError, match="No space"):
        written(tmp_path / "file", [bytes(2 * SLICE_BYTES)])
