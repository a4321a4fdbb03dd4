"""Which neighbouring segments to merge into one, by their sizes. Pure functions over a manifest.

Segments of half the target size or more are left as they are. The others form groups of neighbours that fit into the
target size. A group is *closed* when the segment behind it does not fit, or is no neighbour, or is left as it is; the
last group is *open*: it still grows. Merged are

    a closed group of two or more           as a whole: what comes of it is not merged again
    of the open group the longest end       that is at least MERGE_FACTOR times as large as its largest segment

Write amplification: every merge of the second kind puts a byte into a segment MERGE_FACTOR times as large as the one it
was in, and the first kind happens to it once. So a byte that was flushed in a segment of s bytes is written at most
2 + log10(target / 2s) times by merges: with a target of 64 MiB, 5 times from segments of 10 KiB, twice from segments of
4 MiB, never from half of the target on. The open group has about MERGE_FACTOR segments of each power of ten.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

from kafscale.formats.manifest import Segment
from kafscale.store.paths import SegmentKey

MERGE_FACTOR = 10
SOURCES_MAX_COUNT = 1000  # of one merge; each is a GET


@attrs.frozen
class Found:
    """What to merge first, none if nothing; the groups before index `open_from` are not worth another look."""

    sources: Sequence[Segment]
    open_from: int


def find_sources(
    segments: Sequence[Segment],
    target_bytes: int,
    *,
    least_count: int = 2,
    excluded: Collection[SegmentKey] = (),
) -> Found:
    """The first closed group of `least_count` or more, or else what the open group gives.

    `excluded` are left as they are.
    """
    first, size_bytes = 0, 0  # of the group that ends before `index`
    passed_over = len(segments)  # where the first group begins that has less than `least_count`
    for index, segment in enumerate(segments):
        is_small = 2 * segment.size_bytes < target_bytes and segment.key not in excluded
        if index > first and not (
            is_small
            and size_bytes + segment.size_bytes <= target_bytes
            and index - first < SOURCES_MAX_COUNT
            and segments[index - 1].last_offset + 1 == segment.base_offset
        ):
            if index - first >= least_count:
                return Found(segments[first:index], min(first, passed_over))
            if index - first > 1:
                passed_over = min(first, passed_over)
            first, size_bytes = index, 0
        if is_small:
            size_bytes += segment.size_bytes
        else:
            first = index + 1
    return Found(_worthwhile_end(segments[first:]), min(first, passed_over))


def _worthwhile_end(group: Sequence[Segment]) -> Sequence[Segment]:
    size_bytes, largest_bytes, first = 0, 0, len(group)
    for index in range(len(group) - 1, -1, -1):
        size_bytes += group[index].size_bytes
        largest_bytes = max(largest_bytes, group[index].size_bytes)
        if size_bytes >= MERGE_FACTOR * largest_bytes:
            first = index
    return group[first:]
