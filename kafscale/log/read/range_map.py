"""Which bytes of which segments somebody has: ranges by segment and position, of which no two overlap."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

import attrs

from kafscale.store.paths import SegmentKey

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
        """Up to where there is no range, from `start` on and no further than `end`; `start` itself if it is in one."""
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
