"""Decide which of a partition's objects are read: one rule for every reader of the bucket. May not import trio.

A suspended broker can write segments after another one has taken over. Such a *late* object is not read, and only
retention deletes it. A broker that leads with epoch e begins behind everything that it finds in the bucket, so

    an object of an earlier epoch that ends at or behind the first record of epoch e arrived after that,

and is late as a whole; an object that ends before is in the log as a whole. Each footer has the *history* of the log up
to its last record: where each epoch began (KIP-101). Only one broker has an epoch, so two histories with the same epoch
at an offset are equal up to there. Hence one history decides about all objects up to its end: an object is late if the
history has another epoch at its last offset, or, before its footer is read, a later epoch than its writer's. Where
histories differ, that of the latest epoch counts.

A broker that has flushed nothing yet has served what it found. So its checkpoint of the manifests, written before it
serves anything, counts like a footer: its epoch has *decided* the segments in it.

Few footers must be read: those of merged segments, which readers open anyway; that of the last flush of the latest
epoch; and those of flushes that overlap an earlier epoch's object. Overlaps of timely objects are settled by
`kafscale.formats.manifest.without_covered`.
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
    """Segments that the broker of an epoch found before it served anything, or has written."""

    epoch: int
    keys: Set[SegmentKey]

    def authority(self, segment: Segment) -> int:
        """Return the latest epoch whose broker has taken this segment for a part of the log."""
        return max(segment.epoch, self.epoch) if segment.key in self.keys else segment.epoch


NOTHING_DECIDED = Decided(EPOCH_UNKNOWN, frozenset())


@attrs.frozen
class Resolution:
    """The segments to read, in order of offset, late ones, and those whose footers must be read first."""

    segments: Sequence[Segment]
    late: Collection[SegmentKey]
    unread: Collection[SegmentKey]


def assumed_ends(keys: Iterable[SegmentKey]) -> Mapping[SegmentKey, int]:
    """Return the offset before the next base offset of the same or a later epoch, for each key that has one.

    A flush ends there, so its footer need not be read. An earlier epoch's object behind it is late, and does not count.
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
    """Return the leader epoch at this offset, or before; -1 if the history does not tell."""
    index = bisect_right(history, offset, key=_start_offset)
    return history[index - 1].epoch if index else -1


def resolve(
    segments: Iterable[Segment],
    histories: Histories,
    *,
    begun: Iterable[EpochStart] = (),
    decided: Decided = NOTHING_DECIDED,
) -> Resolution:
    """Resolve segments. `histories` are from footers that were read, each as of its segment's end.

    Other segments have their assumed ends, or OFFSET_MAX. `begun` are epoch starts that no footer shows: a write-ahead
    log has their records, or the object is damaged. `decided` is from the newest checkpoint of the manifests.
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


def _overlap(segments: Sequence[Segment]) -> bool:
    return any(before.last_offset >= after.key.base_offset for before, after in pairwise(segments))


@attrs.frozen(kw_only=True)
class _Judge:
    """`history` is the log's up to `last_offset`, as footers tell. `refuted` are late by their own footers."""

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
        """Return where a later epoch began: objects of this epoch that end before are not late."""
        latest_own = self.oldest_epoch - 1 if epoch == EPOCH_UNKNOWN else epoch
        later = [start.start_offset for start in (*self.history, *self.begun) if start.epoch > latest_own]
        return min(later, default=math.inf)

    def _is_late(self, segment: Segment) -> bool:
        latest_own = self.oldest_epoch - 1 if segment.epoch == EPOCH_UNKNOWN else segment.epoch
        if any(start.epoch > latest_own and start.start_offset <= segment.last_offset for start in self.begun):
            return True
        if segment.key in self.histories:
            return segment.key in self.refuted
        return epoch_at(self.history, min(segment.last_offset, self.last_offset)) > latest_own

    def find_last(self, timely: Iterable[Segment]) -> set[SegmentKey]:
        """Return the last segment of the latest epoch that may continue behind what is known."""
        beyond = [
            segment
            for segment in timely
            if segment.last_offset > self.last_offset and segment.key not in self.histories
        ]
        last = max(beyond, key=lambda each: (self.decided.authority(each), each.base_offset), default=None)
        return set() if last is None else {last.key}

    def find_doubtful(self, timely: Iterable[Segment]) -> set[SegmentKey]:
        """Return flushes with assumed ends that would win over records of an earlier epoch."""
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
