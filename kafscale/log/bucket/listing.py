"""List the segments of a namespace, in several ranges at once where there are many.

A page of 1,000 keys takes a round trip, and only its last key tells where the next page begins: 200,000 objects take
200 round trips one after another, and 13 in 16 ranges. Ranges begin at partitions, which the caller knows.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing

import attrs

from kafscale.concurrency.nurseries import for_each
from kafscale.formats.manifest import ListedSegment, PartitionId, fingerprint
from kafscale.store.base import LIST_PAGE_MAX_COUNT, ObjectInfo, ObjectStore
from kafscale.store.paths import SegmentKey, namespace_prefix, parse_segment_key

RANGES_MAX_COUNT = 16  # of the 64 operations at once; then reading the replies takes longer than waiting for them

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class Listing:
    """All segments by partition, each partition's in order of the keys; and the `.index` objects without `.kfs`."""

    segments: dict[PartitionId, list[ListedSegment]] = attrs.field(factory=lambda: defaultdict(list))
    orphans: list[SegmentKey] = attrs.field(factory=list)
    object_count: int = 0


async def list_segments(
    store: ObjectStore, namespace: str, on_progress: Callable[[int], None], *, prefixes: Iterable[str] = ()
) -> Mapping[PartitionId, Sequence[ListedSegment]]:
    """Every segment of a namespace, by partition. `on_progress` is told the number of objects seen. Raises StoreError.

    `prefixes` are those of partitions that may be there: the listing is cut at them.
    """
    lister = _Lister(store, namespace_prefix(namespace), on_progress)
    rest_after = await lister.take(_Range("", None), stops_early=True)
    if rest_after is not None:

        async def take(range: _Range) -> None:
            await lister.take(range)

        ranges = _cut(rest_after, sorted(prefixes))
        await for_each(ranges, take, tasks_count=len(ranges))
    if lister.found.orphans:
        logger.warning("%d .index objects have no .kfs; they are ignored", len(lister.found.orphans))
    return lister.found.segments


async def list_again(store: ObjectStore, listed: Iterable[ListedSegment]) -> Sequence[ListedSegment]:
    """List what the directories that these segments are in hold by now. Raises StoreError."""
    return await list_directories(store, sorted({f"{segment.key.key.rpartition('/')[0]}/" for segment in listed}))


async def list_directories(store: ObjectStore, prefixes: Iterable[str]) -> Sequence[ListedSegment]:
    """The segments of a partition, given what the keys of its objects begin with. Raises StoreError."""
    found: list[ListedSegment] = []
    for prefix in prefixes:
        lister = _Lister(store, prefix, on_progress=lambda count: None)
        await lister.take(_Range("", None))
        found += [segment for segments in lister.found.segments.values() for segment in segments]
    return found


@attrs.frozen
class _Range:
    """The keys behind `after`, up to `until`; None for no end."""

    after: str
    until: str | None


def _cut(after: str, prefixes: Sequence[str]) -> Sequence[_Range]:
    following = prefixes[bisect_right(prefixes, after) :]
    count = min(RANGES_MAX_COUNT, len(following) + 1)
    ends = [following[len(following) * number // count] for number in range(1, count)]
    return [_Range(*pair) for pair in zip([after, *ends], [*ends, None], strict=True)]


@attrs.frozen(eq=False, repr=False)
class _Lister:
    store: ObjectStore
    prefix: str
    on_progress: Callable[[int], None]
    found: Listing = attrs.field(factory=Listing, init=False)

    async def take(self, range: _Range, *, stops_early: bool = False) -> str | None:
        """Take what a range lists.

        If it `stops_early`, it ends after one full page, and returns after which key the rest begins.
        """
        index_sizes: dict[str, int] = {}
        rest_after: str | None = None
        async with aclosing(self.store.list(self.prefix, start_after=range.after)) as pages:
            async for page in pages:
                within = page
                if range.until is not None and page[-1].key > range.until:
                    within = [info for info in page if info.key <= range.until]
                self._take_page(within, index_sizes)
                if len(within) < len(page):
                    break
                if stops_early and len(page) == LIST_PAGE_MAX_COUNT:
                    rest_after = page[-1].key.removesuffix("index")  # its .kfs comes next, so it is listed once more
                    index_sizes.pop(rest_after, None)
                    break
        self.found.orphans.extend(key for name in index_sizes if (key := parse_segment_key(f"{name}index")))
        return rest_after

    def _take_page(self, page: Sequence[ObjectInfo], index_sizes: dict[str, int]) -> None:
        """An `.index` comes before its `.kfs`."""
        for info in page:
            name = info.key
            if name.endswith(".index"):
                index_sizes[name[:-5]] = info.size_bytes
            elif (key := parse_segment_key(name)) is not None:
                index_size = index_sizes.pop(name[:-3], None)
                told = fingerprint(info.size_bytes, info.etag)
                listed = ListedSegment(key, info.size_bytes, index_size, told)
                self.found.segments[key.topic_id, key.partition].append(listed)
        self.found.object_count += len(page)
        self.on_progress(self.found.object_count)
