"""Decide which of a partition's objects are read: one rule for every reader of the bucket. May not import trio.

A broker that was suspended, or cut off from the store, can write segments after another one has taken over. Such an
object is *late*: it is not read, and only retention deletes it. Leader epochs tell it from the others. A
broker that leads with epoch e begins behind everything that it finds in the bucket, so

    whatever a broker of an earlier epoch wrote that ends at or behind the first record of epoch e came after that,

and as a whole: an object that ends before is in the log as a whole, so none is ever cut. Where each epoch begins is in
the footers: each has the *history* of the log up to its last record (KIP-101). Two histories that have the same epoch
at an offset are the same up to there, as only one broker ever has an epoch. So one that was read decides about all
objects up to its end: an object is late if the history has another epoch at its last offset than the object itself; or,
as long as its footer has not been read, if the history has a later one there than that of the broker which wrote it.
Where histories differ, that of the broker with the latest epoch is the log's.

A broker that leads with epoch e and has flushed nothing yet has served what it found all the same. So its checkpoint of
the manifests, which is in the bucket before it serves anything, counts like a footer of epoch e: the history of each
segment in it is one that epoch e has *decided*, whatever the epoch in the segment's key. What an earlier broker's
object says against it came later.

Few footers have to be read for that: those of merged segments, which readers open anyway; that of the last flush of the
latest epoch, which tells where the log ends; and where a flush overlaps an earlier epoch's object, that flush's.

What is not late and overlaps is settled by `kafscale.formats.manifest.without_covered`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from itertools import groupby, pairwise
from operator import attrgetter

import attrs

from kafscale.formats.manifest import OffsetRanges, Segment, without_covered
from kafscale.formats.segment import EpochStart
from kafscale.store.paths import EPOCH_UNKNOWN, SegmentKey

Histories = Mapping[SegmentKey, Sequence[EpochStart]]

_epoch = attrgetter("epoch")
_start_offset = attrgetter("start_offset")


@attrs.frozen
class Decided:
    """Segments that the broker of an epoch found before it served anything, or has written itself."""

    epoch: int
    keys: Set[SegmentKey]

    def authority(self, segment: Segment) -> int:
        """The latest epoch whose broker is known to have taken this segment for a part of the log."""
        return max(segment.epoch, self.epoch) if segment.key in self.keys else segment.epoch


NOTHING_DECIDED = Decided(EPOCH_UNKNOWN, frozenset())


@attrs.frozen
class Resolution:
    """The segments to read, in order of offset, the late ones, and those whose footers must be read first to decide."""

    segments: Sequence[Segment]
    late: Collection[SegmentKey]
    unread: Collection[SegmentKey]


def assumed_ends(keys: Iterable[SegmentKey]) -> Mapping[SegmentKey, int]:
    """The offset before the next base offset of the same or a later epoch, for each key that has such a one behind it.

    What a flush wrote ends there, so that its footer need not be read. Earlier epochs do not count: what they have
    behind it is late.
    """
    ends: dict[SegmentKey, int] = {}
    following: list[SegmentKey] = []  # in descending order of offset; each has a later epoch than all behind it
    descending = sorted(keys, key=lambda key: (-key.base_offset, key.epoch))
    for base_offset, group in groupby(descending, key=lambda key: key.base_offset):
        same = list(group)  # in order of epoch
        for key in same:
            found = next((segment for segment in reversed(following) if segment.epoch >= key.epoch), None)
            if found is not None:
                ends[key] = found.base_offset - 1
        while following and following[-1].epoch <= same[-1].epoch:
            following.pop()
        following.append(same[-1])
        assert following[-1].base_offset == base_offset
    return ends


def epoch_at(history: Sequence[EpochStart], offset: int) -> int:
    """The leader epoch of the record at this offset, or of the one before it; -1 if the history does not tell."""
    index = bisect_right(history, offset, key=_start_offset)
    return history[index - 1].epoch if index else -1


def resolve(
    segments: Iterable[Segment],
    histories: Histories,
    *,
    begun: Iterable[EpochStart] = (),
    decided: Decided = NOTHING_DECIDED,
) -> Resolution:
    """Decide. `histories` are from the footers that have been read, each as of its segment's end.

    A segment without one has its assumed end, or OFFSET_MAX if it has none. `begun` are epochs that are known to have
    begun at an offset although no footer shows it: a write-ahead log has their records, or the object is damaged.
    `decided` is what the newest checkpoint of the manifests tells.
    """
    found = list(segments)
    judge = _Judge.of(found, histories, begun, decided)
    late = judge.find_late(found)
    timely = [segment for segment in found if segment.key not in late] if late else found
    kept = without_covered(timely)
    unread = judge.find_last(timely)
    if not unread and (len(kept) < len(timely) or _overlap(kept)):
        unread = judge.find_doubtful(timely)
    return Resolution(kept, late, unread)


def _overlap(ordered: Sequence[Segment]) -> bool:
    return any(before.last_offset >= after.key.base_offset for before, after in pairwise(ordered))


@attrs.frozen(kw_only=True)
class _Judge:
    """`history` is the log's up to `last_offset`, as far as footers tell. `refuted` are late by their own footers."""

    histories: Histories
    history: Sequence[EpochStart]
    last_offset: int
    refuted: Collection[SegmentKey]
    begun: Sequence[EpochStart]
    decided: Decided
    oldest_epoch: float  # of those that are in keys: what has none in its key is older

    @classmethod
    def of(
        cls,
        segments: Sequence[Segment],
        histories: Histories,
        begun: Iterable[EpochStart],
        decided: Decided,
    ) -> _Judge:
        history: Sequence[EpochStart] = ()
        last_offset = -1
        refuted: set[SegmentKey] = set()
        told = [segment for segment in segments if segment.key in histories]
        for segment in sorted(told, key=lambda each: (-decided.authority(each), -each.last_offset)):
            own = histories[segment.key]
            common = min(segment.last_offset, last_offset)
            epochs = {epoch_at(history, common), epoch_at(own, common)} - {-1}  # version 1 knows no epochs
            if common >= 0 and len(epochs) > 1:
                refuted.add(segment.key)
            elif segment.last_offset > last_offset:
                history, last_offset = own, segment.last_offset
        oldest = min((segment.epoch for segment in segments if segment.epoch != EPOCH_UNKNOWN), default=math.inf)
        return cls(
            histories=histories,
            history=history,
            last_offset=last_offset,
            refuted=refuted,
            begun=list(begun),
            decided=decided,
            oldest_epoch=oldest,
        )

    def find_late(self, segments: Sequence[Segment]) -> set[SegmentKey]:
        by_epoch: dict[int, list[Segment]] = defaultdict(list)
        for segment in segments:
            by_epoch[segment.key.epoch].append(segment)
        late = set(self.refuted)
        for epoch, written in by_epoch.items():
            first_late = self._first_late(epoch)
            late.update(
                segment.key for segment in written if segment.last_offset >= first_late and self._is_late(segment)
            )
        return late

    def _first_late(self, epoch: int) -> float:
        """Return where the first broker of a later epoch began.

        What one of this epoch wrote is not late if it ends before that.
        """
        latest_own = self.oldest_epoch - 1 if epoch == EPOCH_UNKNOWN else epoch
        later = [start.start_offset for start in (*self.history, *self.begun) if start.epoch > latest_own]
        return min(later, default=math.inf)

    def _is_late(self, segment: Segment) -> bool:
        """An object that ends behind the first record of a later epoch."""
        latest_own = self.oldest_epoch - 1 if segment.epoch == EPOCH_UNKNOWN else segment.epoch
        if any(start.epoch > latest_own and start.start_offset <= segment.last_offset for start in self.begun):
            return True
        if segment.key in self.histories:
            return segment.key in self.refuted
        return epoch_at(self.history, min(segment.last_offset, self.last_offset)) > latest_own

    def find_last(self, timely: Iterable[Segment]) -> set[SegmentKey]:
        """Return the last segment of the latest epoch among those that may go on behind what is known."""
        beyond = [
            segment
            for segment in timely
            if segment.last_offset > self.last_offset and segment.key not in self.histories
        ]
        last = max(beyond, key=lambda each: (self.decided.authority(each), each.base_offset), default=None)
        return set() if last is None else {last.key}

    def find_doubtful(self, timely: Iterable[Segment]) -> set[SegmentKey]:
        """Flushes whose end is not known for sure, and that would win over records of an earlier epoch."""
        doubtful: set[SegmentKey] = set()
        earlier = OffsetRanges()
        for _, group in groupby(sorted(timely, key=_epoch), key=_epoch):
            same_epoch = list(group)
            doubtful.update(
                segment.key
                for segment in same_epoch
                if segment.key not in self.histories and earlier.meet(segment.base_offset, segment.last_offset)
            )
            for segment in same_epoch:
                earlier.add(segment.base_offset, segment.last_offset)
        return doubtful
