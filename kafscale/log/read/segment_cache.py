"""Cache ranges of segments in memory: recently read ones and those being read. No I/O.

A range begins and ends at rows of its segment's footer; no two of a segment overlap. Objects never change, except by a
repair, which forgets their ranges. Every byte is counted once, while somebody can reach it:

    being read for a fetch    in the fetch's share of the fetch budget
    being read ahead          in the cache, which made room before
    read                      in the cache if it has room, else in that share until its last user releases it
    being sent                where it was; pinned ranges are not evicted

So the cache never exceeds its limit, however slowly consumers take their bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

import attrs

from kafscale.concurrency.byte_budget import Share
from kafscale.concurrency.sharing import Flight
from kafscale.log.partition.tail import Slices
from kafscale.metrics import Metrics
from kafscale.store.paths import SegmentKey

RANGE_OVERHEAD_BYTES = 512  # of a range's own objects, so that many small ranges are counted fully
LARGEST_FRACTION = 0.25  # of the cache, that one range may take: a larger one would push out all the others


_start = attrgetter("start")


class Ranged(Protocol):
    """Bytes `start` to `end` (exclusive) of a `.kfs`."""

    @property
    def key(self) -> SegmentKey: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


R = TypeVar("R", bound=Ranged)


@attrs.define(eq=False, repr=False)
class RangeMap(Generic[R]):
    """Ranges that don't overlap, found by position."""

    _ranges: dict[SegmentKey, list[R]] = attrs.field(factory=dict, init=False)  # of each segment, in order

    def of(self, key: SegmentKey) -> Sequence[R]:
        return tuple(self._ranges.get(key, ()))

    def find(self, key: SegmentKey, position: int) -> R | None:
        ranges = self._ranges.get(key, ())
        index = bisect_right(ranges, position, key=_start) - 1
        return ranges[index] if index >= 0 and position < ranges[index].end else None

    def gap_end(self, key: SegmentKey, start: int, end: int) -> int:
        """Return the end of the gap that begins at `start`, at most `end`; `start` if a range has it."""
        ranges = self._ranges.get(key, ())
        following = bisect_right(ranges, start, key=_start)
        if following and start < ranges[following - 1].end:
            return start
        return min(end, ranges[following].start) if following < len(ranges) else end

    def add(self, added: R) -> None:
        assert self.gap_end(added.key, added.start, added.end) == added.end, (added.key, added.start, added.end)
        insort(self._ranges.setdefault(added.key, []), added, key=_start)

    def remove(self, removed: R) -> None:
        ranges = self._ranges[removed.key]
        index = bisect_left(ranges, removed.start, key=_start)
        assert ranges[index] is removed
        del ranges[index]
        if not ranges:
            del self._ranges[removed.key]


@attrs.define(eq=False, repr=False)
class CacheStatistics:
    """Counts since the start. A shared look-up found its range being read by another fetch."""

    hit_count: int = 0
    hit_bytes: int = 0
    shared_count: int = 0
    miss_count: int = 0
    evicted_count: int = 0
    evicted_bytes: int = 0


@attrs.define(eq=False, repr=False)
class Range:
    """Bytes `start` to `end` of a `.kfs`; `data` is None until they are read. Made with one pin, the reader's."""

    key: SegmentKey
    start: int
    end: int
    _cache: SegmentCache
    _share: Share | None  # of the fetch budget, as long as the cache does not count it
    flight: Flight = attrs.field(factory=Flight, init=False)
    data: memoryview | None = attrs.field(default=None, init=False)
    _pin_count: int = attrs.field(default=1, init=False)
    _is_listed: bool = attrs.field(default=True, init=False)

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    @property
    def counted_bytes(self) -> int:
        return self.size_bytes + RANGE_OVERHEAD_BYTES

    @property
    def is_cached(self) -> bool:
        """Tell whether it counts in the cache, and not in the fetch budget."""
        return self._share is None

    @property
    def is_current(self) -> bool:
        """Tell whether it is neither evicted nor its object deleted."""
        return self._is_listed

    def retain(self) -> None:
        self._cache._pin(self)

    def release(self) -> None:
        self._cache._unpin(self)


@attrs.define(eq=False, repr=False)
class SegmentCache:
    """Keeps at most `max_bytes` of ranges; the least recently used one goes first.

    The callbacks in `on_idle` are called when a range has no users any more, those in `on_forget` when its object is to
    be deleted.
    """

    max_bytes: int
    on_idle: list[Callable[[], None]] = attrs.field(factory=list, init=False)
    on_forget: list[Callable[[SegmentKey], None]] = attrs.field(factory=list, init=False)
    size_bytes: int = attrs.field(default=0, init=False)
    statistics: CacheStatistics = attrs.field(factory=CacheStatistics, init=False)
    _listed: RangeMap[Range] = attrs.field(factory=RangeMap, init=False)
    _idle: OrderedDict[Range, None] = attrs.field(factory=OrderedDict, init=False)  # not pinned, least recent first
    _idle_bytes: int = attrs.field(default=0, init=False)

    @property
    def pinned_bytes(self) -> int:
        """The size of ranges being read ahead, waiting for their reader, or being sent."""
        return self.size_bytes - self._idle_bytes

    def register(self, metrics: Metrics) -> None:
        looks = self.statistics
        metrics.gauge("kafscale_cache_bytes", "Bytes of segments in the memory cache.", lambda: self.size_bytes)
        metrics.gauge(
            "kafscale_cache_pinned_bytes",
            "Bytes of the memory cache that are being sent or read ahead.",
            lambda: self.pinned_bytes,
        )
        metrics.counts(
            "kafscale_cache_lookups_total",
            "Ranges wanted by fetches: in the memory cache (hit), being read already (shared), or neither (miss).",
            "result",
            lambda: {"hit": looks.hit_count, "shared": looks.shared_count, "miss": looks.miss_count},
        )
        metrics.count(
            "kafscale_cache_hit_bytes_total", "Bytes that fetches found in the memory cache.", lambda: looks.hit_bytes
        )
        metrics.count(
            "kafscale_cache_evictions_total",
            "Ranges of segments removed from the memory cache to make room.",
            lambda: looks.evicted_count,
        )

    def take(self, key: SegmentKey, start: int, end: int) -> Slices | None:
        """Return the cached bytes from `start` on, at most up to `end`, or None. The caller sets `end_offset`."""
        slices = Slices()
        while start < end and (found := self._listed.find(key, start)) is not None and found.data is not None:
            found.retain()
            until = min(end, found.end)
            slices.buffers.append(found.data[start - found.start : until - found.start])
            slices.leases.append(found)
            start = until
        return slices if slices.leases else None

    def find(self, key: SegmentKey, position: int) -> Range | None:
        """Return the range with the byte at `position`, cached or being read."""
        return self._listed.find(key, position)

    def gap_end(self, key: SegmentKey, start: int, end: int) -> int:
        """Return the end of the gap from `start` that is neither cached nor being read, at most `end`."""
        return self._listed.gap_end(key, start, end)

    # ---- reading ------------------------------------------------------------------------------------------------

    def begin(self, key: SegmentKey, start: int, end: int, share: Share) -> Range:
        """Begin to read a gap for a fetch, whose share of the fetch budget is taken over."""
        wanted = Range(key, start, end, self, share)
        self._listed.add(wanted)
        return wanted

    def reserve(self, key: SegmentKey, start: int, end: int) -> Range | None:
        """Make room for a gap that no fetch waits for, or return None."""
        wanted = Range(key, start, end, self, None)
        if not self._make_room(wanted):
            return None
        self.size_bytes += wanted.counted_bytes
        self._listed.add(wanted)
        return wanted

    def put(self, key: SegmentKey, start: int, data: memoryview) -> None:
        """Keep bytes that came along with others, if there is room and none of them are cached."""
        end = start + len(data)
        if data and self.gap_end(key, start, end) == end and (kept := self.reserve(key, start, end)) is not None:
            self.landed(kept, memoryview(bytes(data)))  # a copy, as the rest of the buffer is not wanted
            kept.release()

    def landed(self, read: Range, data: memoryview) -> None:
        """Set the bytes. The cache takes them over from the fetch budget if it has room."""
        assert len(data) == read.size_bytes
        read.data = data
        if read._share is not None and read._is_listed and self._make_room(read):
            self.size_bytes += read.counted_bytes
            read._share.release()
            read._share = None
        read.flight.land()

    def failed(self, read: Range, error: BaseException | None) -> None:
        """Fail a read. Its owner must still `release` it."""
        self._unlist(read)
        read.flight.land(error)

    def forget(self, key: SegmentKey) -> None:
        """Forget an object that is to be deleted. Pinned ranges stay for their users."""
        for range_ in self._listed.of(key):
            self._unlist(range_)
            if range_ in self._idle:
                self._remove_idle(range_)
                self._free(range_)
        for tell in self.on_forget:
            tell(key)

    # ---- what is pinned, and what may go ------------------------------------------------------------------------

    def _pin(self, used: Range) -> None:
        if used in self._idle:
            self._remove_idle(used)
        used._pin_count += 1

    def _unpin(self, used: Range) -> None:
        assert used._pin_count > 0, "a range was released once too often"
        used._pin_count -= 1
        if used._pin_count:
            return
        if used._is_listed and used._share is None:
            self._idle[used] = None
            self._idle_bytes += used.counted_bytes
            for tell in self.on_idle:
                tell()
        else:
            self._unlist(used)
            self._free(used)

    def _make_room(self, wanted: Range) -> bool:
        """Evict idle ranges until there is room; none, if that would not be enough."""
        wanted_bytes = wanted.counted_bytes
        if wanted_bytes > self.max_bytes * LARGEST_FRACTION or self.pinned_bytes + wanted_bytes > self.max_bytes:
            return False
        while self.size_bytes + wanted_bytes > self.max_bytes:
            oldest = next(iter(self._idle))
            oldest.retain()
            self.evict(oldest)
        return True

    def pin_oldest(self) -> Range | None:
        """Pin and return the range that would be evicted next. The caller owes `evict`."""
        oldest = next(iter(self._idle), None)
        if oldest is not None:
            oldest.retain()
        return oldest

    def evict(self, pinned: Range) -> None:
        """Evict a range that the caller has pinned; other users keep it until they release it."""
        self.statistics.evicted_count += 1
        self.statistics.evicted_bytes += pinned.size_bytes
        self._unlist(pinned)
        pinned.release()

    def _remove_idle(self, range_: Range) -> None:
        del self._idle[range_]
        self._idle_bytes -= range_.counted_bytes

    def _free(self, range_: Range) -> None:
        range_.data = None
        if range_._share is not None:
            range_._share.release()
        else:
            self.size_bytes -= range_.counted_bytes

    def _unlist(self, range_: Range) -> None:
        if range_._is_listed:
            range_._is_listed = False
            self._listed.remove(range_)
