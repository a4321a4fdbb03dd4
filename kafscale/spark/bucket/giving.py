"""What tasks need not get of the write-ahead log: batches that were read to plan it go along with the plan.

Where much was acknowledged in small pieces, the log is thousands of objects of some records each, and each GET costs
more than what it brings. So of what is at hand, batches of neighbours in a partition become one range that has their
bytes. A task is given so much at most; what is more becomes further tasks, which cost less than the GETs, but for large
objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from kafscale.spark.bucket.splits import AnyRange, GivenRange, LogRange, Split
from kafscale.store.paths import NumberedKey

Contents = Mapping[NumberedKey, memoryview]  # of whole objects, as they are in the bucket

GIVEN_MAX_BYTES = 900 << 10  # of a task: Spark warns of those that are larger than 1000 KiB
SMALL_MAX_BYTES = 64 << 10  # of an object that is given even where that makes more tasks


def give(task: Sequence[Split], contents: Contents, *, max_bytes: int = GIVEN_MAX_BYTES) -> Sequence[Sequence[Split]]:
    """Return the task with what is at hand of the log, or as many as are needed in its place."""
    logged = [each for split in task for each in split.ranges if isinstance(each, LogRange) and each.key in contents]
    if not logged:
        return [task]
    if sum(each.size_bytes for each in logged) > max_bytes:
        contents = {key: data for key, data in contents.items() if len(data) <= SMALL_MAX_BYTES}
    giving = _Giving(contents, max_bytes)
    for split in task:
        giving.add(split)
    return giving.tasks


@attrs.define(eq=False, repr=False)
class _Giving:
    """Tasks as they become: what was taken last is not in the last one of them yet."""

    contents: Contents
    max_bytes: int
    tasks: list[list[Split]] = attrs.field(factory=lambda: [[]], init=False)
    _given_bytes: int = attrs.field(default=0, init=False)  # of the last task
    _ranges: list[AnyRange] = attrs.field(factory=list, init=False)  # of a split
    _taken: list[LogRange] = attrs.field(factory=list, init=False)  # and of the range at its end

    def add(self, split: Split) -> None:
        """Add all of a split, cut where a task has been given enough."""
        start_offset = split.start_offset
        for each in split.ranges:
            if not isinstance(each, LogRange) or each.key not in self.contents:
                self._join_taken()
                self._ranges.append(each)
                continue
            if self._given_bytes and self._given_bytes + each.size_bytes > self.max_bytes:
                if self._ranges or self._taken:
                    self._end(attrs.evolve(split, start_offset=start_offset, end_offset=each.start_offset))
                    start_offset = each.start_offset
                self.tasks.append([])
                self._given_bytes = 0
            self._taken.append(each)
            self._given_bytes += each.size_bytes
        self._end(attrs.evolve(split, start_offset=start_offset))

    def _end(self, split: Split) -> None:
        self._join_taken()
        self.tasks[-1].append(attrs.evolve(split, ranges=self._ranges))
        self._ranges = []

    def _join_taken(self) -> None:
        """Make one range of neighbours that are given."""
        if not self._taken:
            return
        first, last = self._taken[0], self._taken[-1]
        parts = [
            self.contents[each.key][position : position + length_bytes]
            for each in self._taken
            for position, length_bytes in each.places
        ]
        self._ranges.append(
            GivenRange(first.key, last.key, first.topic_id, b"".join(parts), first.start_offset, last.end_offset)
        )
        self._taken = []
