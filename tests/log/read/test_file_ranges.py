"""Ranges that the kernel sends: the same batches as who reads finds, and nothing that is cold, small or damaged."""

import errno
import os
from pathlib import Path

import pytest

from kafscale.concurrency.byte_budget import ByteBudget
from kafscale.errors import DamagedObject
from kafscale.formats.footer_reading import read_footer
from kafscale.formats.manifest import Segment
from kafscale.log.read import file_ranges
from kafscale.log.read.file_ranges import FileRanges
from kafscale.log.read.footers import Footers
from kafscale.log.read.ranges import RangeReader
from kafscale.log.read.read_ahead import ReadAhead
from kafscale.log.read.reader import LogReader, _Wanted
from kafscale.log.read.segment_cache import SegmentCache
from kafscale.log.read.unpacking import Unpacking
from kafscale.metrics import Metrics
from kafscale.store.file import open_files
from kafscale.store.file.directory import Directory
from kafscale.store.file.open_files import FileRange, FileSource
from kafscale.store.file.store import FileStore
from kafscale.store.paths import SegmentKey
from kafscale.store.wrappers.limiter import PrefetchStore
from kafscale.store.wrappers.metered import StoreMetrics
from tests.devtools.fakes.segment_objects import make_batches, version_1_key, version_1_objects, version_2_objects

ALL = 1 << 30
KEY = SegmentKey(topic="t", topic_id=bytes(range(16)), partition=0, base_offset=10)


@pytest.fixture(autouse=True)
def everything_is_cached(monkeypatch):
    """What is not about the page cache holds on a kernel that does not tell what is in it."""
    monkeypatch.setattr(open_files, "is_cached", lambda descriptor, start, length_bytes: True)


def segment_of(key, footer) -> Segment:
    return Segment(key=key, last_offset=footer.last_offset, size_bytes=footer.identity.body_bytes, max_timestamp_ms=0)


class Files:
    """A directory with one segment, and both ways to it."""

    def __init__(self, root: Path) -> None:
        self.store = FileStore(Directory.open(root))
        self.metrics = StoreMetrics.register(Metrics())
        cache = SegmentCache(0)
        self.ranges = FileRanges(FileSource(self.store.directory, self.metrics), cache)
        self.footers = Footers(self.store, ALL, cache)
        self.reader = LogReader(
            footers=self.footers,
            ranges=RangeReader(store=self.store, cache=cache, budget=ByteBudget(ALL)),
            read_ahead=ReadAhead(store=PrefetchStore(self.store), footers=self.footers, cache=cache, max_bytes=0),
            unpacking=Unpacking(ALL),
            files=self.ranges,
        )

    async def put(self, version: int = 2, *, batch_count: int = 40) -> Segment:
        if version == 1:
            key = version_1_key("t", 0, 10)
            objects = version_1_objects(key, make_batches(10, batch_count, value_bytes=5000), interval=9)
        else:
            key = KEY
            objects = version_2_objects(key, make_batches(10, batch_count, value_bytes=5000))
        await objects.put(self.store)
        self.footer = await read_footer(self.store, key)
        self.ranges.note_checked(key, 0, self.footer.end_position)
        return segment_of(key, self.footer)

    def slice(self, segment: Segment, offset: int, max_bytes: int = ALL):
        return self.ranges.slice_nowait(segment, self.footer, offset, max_bytes)


@pytest.fixture
async def files(tmp_path):
    made = Files(tmp_path)
    yield made
    made.ranges.close()
    assert made.ranges.sent_count == 0, "a range was not released"


@pytest.mark.parametrize("version", [1, 2])
async def test_file_slices_have_the_same_batches_as_reads(files, version):
    segment = await files.put(version)
    found_count = 0
    for offset in range(segment.base_offset, segment.last_offset + 1, 4):
        for max_bytes in (1, 40_000, 70_000, 200_000, ALL):
            found = files.slice(segment, offset, max_bytes)
            if found is None:
                continue
            found_count += 1
            read = await files.reader._read_segment(segment, _Wanted(offset, ALL, max_bytes, may_wait=True))
            assert found.range.read(0, found.size_bytes) == b"".join(read.buffers)
            assert found.end_offset == read.end_offset
            read.release()
            found.release()
    assert found_count > 40


async def test_a_range_counts_as_a_read_of_the_store(files):
    segment = await files.put()
    found = files.slice(segment, 10)
    assert files.metrics.operations.of("get_range", "ok").value == 1
    assert files.metrics.bytes.of("read").value == found.size_bytes
    found.release()


async def test_cold_small_or_too_many_ranges_are_left_to_the_reader(files, monkeypatch):
    segment = await files.put()
    assert files.slice(segment, 10, file_ranges.MIN_BYTES - 1) is None
    monkeypatch.setattr(file_ranges, "SENT_MAX_COUNT", 1)
    first = files.slice(segment, 10)
    assert files.slice(segment, 10) is None
    first.release()
    monkeypatch.setattr(open_files, "is_cached", lambda descriptor, start, length_bytes: False)
    assert files.slice(segment, 10) is None


async def test_a_missing_or_cut_off_file_is_not_sent_by_the_kernel(files):
    segment = await files.put()
    path = files.store.directory.root + b"/" + segment.kfs_key.encode()
    os.truncate(path, files.footer.end_position - 1)
    assert files.slice(segment, 10) is None
    with pytest.raises(DamagedObject):
        await files.reader.ranges.read(segment.key, 0, files.footer.end_position)
    files.ranges.forget(segment.key)
    os.unlink(path)
    assert files.slice(segment, 10) is None


@pytest.mark.parametrize("damage", [b"\0" * 17, b"\0" * 8 + b"\xff" * 4 + b"\0" * 4 + b"\2"])
async def test_a_damaged_batch_header_is_not_sent_by_the_kernel(files, damage):
    segment = await files.put()
    path = files.store.directory.root + b"/" + segment.kfs_key.encode()
    with open(path, "r+b") as file:
        file.seek(files.footer.row_start(0))
        file.write(damage)
    assert files.slice(segment, 11) is None


@pytest.mark.parametrize("at_once_bytes", [0, ALL], ids=["checked by the reader", "checked at once"])
async def test_damaged_records_are_not_sent_by_the_kernel(files, monkeypatch, at_once_bytes):
    """Ranges that were not checked were sent as they are."""
    monkeypatch.setattr(file_ranges, "CHECK_AT_ONCE_MAX_BYTES", at_once_bytes)
    segment = await files.put()
    files.ranges.forget(segment.key)
    rows = [files.footer.row_start(row) for row in (0, 20, 40)]
    path = files.store.directory.root + b"/" + segment.kfs_key.encode()
    with open(path, "r+b") as file:
        file.seek(rows[2] - 1)
        file.write(b"?")
    for start, end, is_damaged in ((rows[0], rows[1], False), (rows[1], rows[2], True)):
        offset, max_bytes = files.footer.offset_at(start), end - start
        unread = files.slice(segment, offset, max_bytes)
        assert (unread is None) is (is_damaged or not at_once_bytes)
        if unread is not None:
            unread.release()
        slices = await files.reader.ranges.read(segment.key, start, end)
        assert slices.is_damaged is is_damaged
        slices.release()
        sent = files.slice(segment, offset, max_bytes)
        assert (sent is None) is is_damaged
        if sent is not None:
            sent.release()


async def test_checked_ranges_that_meet_become_one(files):
    for start, end in ((30, 40), (0, 10), (50, 60), (10, 30), (35, 45)):
        files.ranges.note_checked(KEY, start, end)
    assert sorted(files.ranges._checked.get(KEY)) == [(0, 45), (50, 60)]


async def test_a_disk_error_prevents_a_file_slice_and_closes_the_file(files, monkeypatch):
    """The error went to the connection, and the file stayed open."""
    opened = []
    open_object = Directory.open_object
    monkeypatch.setattr(Directory, "open_object", lambda self, key: opened.append(open_object(self, key)) or opened[-1])

    def fail(self, position, length_bytes):
        raise OSError(errno.EIO, "the disk failed")

    segment = await files.put()
    monkeypatch.setattr(FileRange, "read", fail)
    assert files.slice(segment, 10) is None
    files.ranges.forget(segment.key)
    ((descriptor, _),) = opened
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


async def test_a_file_is_opened_once_and_closed_when_its_object_is_to_go(files, monkeypatch):
    opened = []
    open_object = Directory.open_object
    monkeypatch.setattr(Directory, "open_object", lambda self, key: opened.append(key) or open_object(self, key))
    segment = await files.put()
    first, second = files.slice(segment, 10), files.slice(segment, 70)
    assert len(opened) == 1
    descriptor = first.range.file.descriptor
    files.footers.forget(segment)
    first.release()
    assert os.fstat(descriptor)
    assert len(second.range.read(0, second.size_bytes)) == second.size_bytes
    second.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


async def test_no_more_files_than_allowed_stay_open(files):
    files.ranges._open.max_size = 2
    for base_offset in (0, 300, 600):
        key = SegmentKey(topic="t", topic_id=bytes(range(16)), partition=0, base_offset=base_offset)
        await version_2_objects(key, make_batches(base_offset, 40, value_bytes=5000)).put(files.store)
        files.footer = await read_footer(files.store, key)
        files.ranges.note_checked(key, 0, files.footer.end_position)
        files.slice(segment_of(key, files.footer), base_offset).release()
    assert [key.base_offset for key in files.ranges._open] == [300, 600]
