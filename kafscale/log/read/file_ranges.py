"""Ranges of segments that the kernel sends by itself, where the store is a directory and its page cache has them.

They take no memory of the broker, so they need neither a cache nor the fetch budget. Recently used files stay open,
since opening one costs as much as sending it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import attrs

from kafscale.errors import CorruptBatch, KafkaError, StoreError
from kafscale.formats.manifest import Segment
from kafscale.formats.segment import Footer
from kafscale.formats.transactions import AbortedTransaction
from kafscale.log.read.checking import whole_until
from kafscale.log.read.segment_cache import SegmentCache
from kafscale.lru import LruCache
from kafscale.store.file.open_files import FileRange, FileSource, OpenFile
from kafscale.store.paths import SegmentKey
from kafscale.wire.batch_header import HEADER_BYTES, parse_header

CHECK_AT_ONCE_MAX_BYTES = 1 << 20  # from the page cache, a fifth of a millisecond
CHECKED_MAX_COUNT = 4096  # segments of which it is remembered what was checked, most as one range
OPEN_MAX_COUNT = 64  # of the 1,024 descriptors that a process usually has
SENT_MAX_COUNT = 256  # on their way to consumers at once, each perhaps of another file
MIN_BYTES = 32 << 10  # to read and send less costs less
NO_END = sys.maxsize


@attrs.define(eq=False, repr=False)
class FileSlice:
    """Batches in a file on their way to a socket, like `Slices`. The caller must `release`."""

    range: FileRange
    end_offset: int
    _ranges: FileRanges
    aborted: Sequence[AbortedTransaction] = ()
    is_hole = False

    @property
    def buffers(self) -> list[FileRange]:
        return [self.range]

    @property
    def size_bytes(self) -> int:
        return len(self.range)

    def release(self) -> None:
        self.range.release()
        self._ranges.sent_count -= 1


@attrs.define(eq=False, repr=False)
class FileRanges:
    """Finds ranges that can be sent at once. Others are left to the reader: cold, small, cut, damaged or unchecked
    ones.

    A range is checked once: here if it is small, else by the reader, which calls `note_checked`. `cache`, which stays
    empty, tells which objects are to be deleted.
    """

    source: FileSource
    cache: SegmentCache
    sent_count: int = attrs.field(default=0, init=False)
    _open: LruCache[SegmentKey, OpenFile] = attrs.field(init=False)
    _checked: LruCache[SegmentKey, list[tuple[int, int]]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._open = LruCache(OPEN_MAX_COUNT, on_drop=OpenFile.release)
        self._checked = LruCache(CHECKED_MAX_COUNT)
        self.cache.on_forget.append(self.forget)

    def slice_nowait(
        self, segment: Segment, footer: Footer, offset: int, max_bytes: int, *, end_offset: int = NO_END
    ) -> FileSlice | None:
        """Return whole batches from the one that holds `offset`, as many rows as fit into `max_bytes`.

        All rows end before `end_offset` (exclusive).
        """
        row = footer.row_of(offset)
        end_row = footer.rows_within(row, max_bytes)
        if end_offset <= footer.last_offset:
            end_row = min(end_row, footer.row_of(end_offset))
        start, end = footer.row_start(row), footer.row_start(end_row)
        if not MIN_BYTES <= end - start <= max_bytes or self.sent_count >= SENT_MAX_COUNT:
            return None
        try:
            found = self.source.cached_range(self._file(segment.key), start, end)
        except StoreError:
            return None
        if found is None:
            return None
        try:
            if not self._is_checked(segment.key, found):
                found.release()
                return None
            _skip_to(found, offset)
        except (KafkaError, OSError):
            found.release()
            return None
        self.sent_count += 1
        return FileSlice(found, footer.offset_at(end), self)

    def _is_checked(self, key: SegmentKey, found: FileRange) -> bool:
        """Tell whether all batches are known to be whole; a small range is checked now. Raises OSError."""
        start, end = found.start, found.end
        if any(first <= start and end <= last for first, last in self._checked.get(key) or ()):
            return True
        if end - start > CHECK_AT_ONCE_MAX_BYTES:
            return False
        data = memoryview(found.read(0, end - start))
        if len(data) != end - start or whole_until(data) != len(data):
            return False
        self.note_checked(key, start, end)
        return True

    def note_checked(self, key: SegmentKey, start: int, end: int) -> None:
        apart: list[tuple[int, int]] = []
        for first, last in self._checked.pop(key) or ():
            if last < start or end < first:
                apart.append((first, last))
            else:
                start, end = min(start, first), max(end, last)
        self._checked.put(key, [*apart, (start, end)])

    def _file(self, key: SegmentKey) -> OpenFile:
        file = self._open.get(key)
        if file is None:
            file = self.source.open(key.key)
            self._open.put(key, file)
        return file

    def forget(self, key: SegmentKey) -> None:
        """Forget an object that is deleted or damaged. Files being sent stay open."""
        self._checked.pop(key)
        file = self._open.pop(key)
        if file is not None:
            file.release()

    def close(self) -> None:
        for file in self._open.pop_all():
            file.release()


def _skip_to(found: FileRange, offset: int) -> None:
    """Move the start to the first batch that ends at `offset` or later. Raises KafkaError without such a batch."""
    while (header := parse_header(memoryview(found.read(0, HEADER_BYTES)))).last_offset < offset:
        found.start += max(HEADER_BYTES, header.size_bytes)
        if found.start >= found.end:
            raise CorruptBatch(f"no batch has offset {offset} in its row")
