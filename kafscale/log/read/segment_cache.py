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
    """Ranges, each found by any of its positions."""

    _ranges: dict[SegmentKey, list[R]] = attrs.field(factory=dict, init=False)  # of each segment, in order

    def of(self, key: SegmentKey) -> Sequence[R]:
        """All ranges of a segment, in order."""
        return tuple(self._ranges.get(key, ()))

    def find(self, key: SegmentKey, position: int) -> R | None:
        """The range that the byte at `position` is in."""
        ranges = self._ranges.get(key, ())
        index = bisect_right(ranges, position, key=_start) - 1
        return ranges[index] if index >= 0 and position < ranges[index].end else None

    def gap_end(self, key: SegmentKey, start: int, end: int) -> int:
        """Return the end of the gap between ranges that begins at `start`, at most `end`; `start` if a range has it."""
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
    """Counts of the cache since the start. `hit_count`, `shared_count` and `miss_count` are looks for a range by a
    fetch.

    A shared one found its range being read by somebody else.
    """

    hit_count: int = 0
    hit_bytes: int = 0
    shared_count: int = 0
    miss_count: int = 0
    evicted_count: int = 0
    evicted_bytes: int = 0


@attrs.define(eq=False, repr=False)
class Range:
    """Bytes `start` to `end` of a `.kfs`; `data` is None until they are there. Made with one pin, the reader's."""

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
        """Tell whether its object was not deleted since, and it not evicted."""
        return self._is_listed

    def retain(self) -> None:
        """Pin it once more."""
        self._cache._pin(self)

    def release(self) -> None:
        """Give back one pin."""
        self._cache._unpin(self)


@attrs.define(eq=False, repr=False)
class SegmentCache:
    """Keeps at most `max_bytes` of ranges; the one that was not used for longest goes first.

    The callbacks in `on_idle` are called when the last user of a range has released it, so that it may be evicted;
    those in `on_forget`, for a segment whose object is to be deleted.
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
        """Return what is being read ahead, waits for its reader, or is being sent."""
        return self.size_bytes - self._idle_bytes

    def register(self, metrics: Metrics) -> None:
        """Register the metrics."""
        looks = self.statistics
        metrics.gauge("kafscale_cache_bytes", "Ranges of segments kept in memory.", lambda: self.size_bytes)
        metrics.gauge("kafscale_cache_pinned_bytes", "Of these, being sent or read ahead.", lambda: self.pinned_bytes)
        metrics.counts(
            "kafscale_cache_lookups_total",
            "Ranges wanted by fetches: in memory, being read for somebody else, or neither.",
            "result",
            lambda: {"hit": looks.hit_count, "shared": looks.shared_count, "miss": looks.miss_count},
        )
        metrics.count("kafscale_cache_hit_bytes_total", "Bytes that fetches found in memory.", lambda: looks.hit_bytes)
        metrics.count(
            "kafscale_cache_evictions_total", "Ranges that made room for others.", lambda: looks.evicted_count
        )

    def take(self, key: SegmentKey, start: int, end: int) -> Slices | None:
        """The bytes from `start` on, as far as they are here, up to `end`, or None.

        The slices pin their ranges. Their `end_offset` is left to the caller, who has the footer.
        """
        slices = Slices()
        while start < end and (found := self._listed.find(key, start)) is not None and found.data is not None:
            found.retain()
            until = min(end, found.end)
            slices.buffers.append(found.data[start - found.start : until - found.start])
            slices.leases.append(found)
            start = until
        return slices if slices.leases else None

    def find(self, key: SegmentKey, position: int) -> Range | None:
        """The range that the byte at `position` is in, whether it is here or being read."""
        return self._listed.find(key, position)

    def gap_end(self, key: SegmentKey, start: int, end: int) -> int:
        """Return the end of the stretch from `start` that is neither cached nor being read, at most `end`."""
        return self._listed.gap_end(key, start, end)

    # ---- reading ------------------------------------------------------------------------------------------------

    def begin(self, key: SegmentKey, start: int, end: int, share: Share) -> Range:
        """A fetch begins to read a gap, and pays with its share of the fetch budget, which is taken over."""
        wanted = Range(key, start, end, self, share)
        self._listed.add(wanted)
        return wanted

    def reserve(self, key: SegmentKey, start: int, end: int) -> Range | None:
        """A gap is to be read that no fetch waits for; None if the cache has no room for it."""
        wanted = Range(key, start, end, self, None)
        if not self._make_room(wanted):
            return None
        self.size_bytes += wanted.counted_bytes
        self._listed.add(wanted)
        return wanted

    def put(self, key: SegmentKey, start: int, data: memoryview) -> None:
        """Bytes that came along with something else; kept if there is room, and none of them are here yet."""
        end = start + len(data)
        if data and self.gap_end(key, start, end) == end and (kept := self.reserve(key, start, end)) is not None:
            self.landed(kept, memoryview(bytes(data)))  # a copy, as the rest of the buffer is not wanted
            kept.release()

    def landed(self, read: Range, data: memoryview) -> None:
        """The bytes are there. The cache takes them over from the fetch budget if it has room."""
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
        """The object is to be deleted. What is pinned stays for those who have it."""
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
        """Evict what is idle until there is room; nothing, if that would not be enough."""
        wanted_bytes = wanted.counted_bytes
        if wanted_bytes > self.max_bytes * LARGEST_FRACTION or self.pinned_bytes + wanted_bytes > self.max_bytes:
            return False
        while self.size_bytes + wanted_bytes > self.max_bytes:
            oldest = next(iter(self._idle))
            oldest.retain()
            self.evict(oldest)
        return True

    def pin_oldest(self) -> Range | None:
        """Return what would be evicted next, pinned for a caller who does something with it before, and then owes
        `evict`.
        """
        oldest = next(iter(self._idle), None)
        if oldest is not None:
            oldest.retain()
        return oldest

    def evict(self, pinned: Range) -> None:
        """Let go of a range that the caller has pinned; users that it has still got keep it until they release it."""
        self.statistics.evicted_count += 1
        self.statistics.evicted_bytes += pinned.size_bytes
        self._unlist(pinned)
        pinned.release()

    def _remove_idle(self, each: Range) -> None:
        del self._idle[each]
        self._idle_bytes -= each.counted_bytes

    def _free(self, each: Range) -> None:
        each.data = None
        if each._share is not None:
            each._share.release()
        else:
            self.size_bytes -= each.counted_bytes

    def _unlist(self, each: Range) -> None:
        if each._is_listed:
            each._is_listed = False
            self._listed.remove(each)
