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
from kafscale.store.paths import namespace_prefix, parse_segment_key

RANGES_MAX_COUNT = 16  # of the 64 operations at once; then reading the replies takes longer than waiting for them

logger = logging.getLogger(__name__)


async def list_segments(
    store: ObjectStore, namespace: str, on_progress: Callable[[int], None], *, prefixes: Iterable[str] = ()
) -> Mapping[PartitionId, Sequence[ListedSegment]]:
    """List every segment of a namespace, by partition, in order of the keys. Raises StoreError.

    `on_progress` gets the number of objects seen. The listing is cut at `prefixes` of partitions.
    """
    lister = _Lister(store, namespace_prefix(namespace), on_progress)
    await lister.take(_Range("", None), stops_early=True)
    if lister.rest_after is not None:
        ranges = _cut(lister.rest_after, sorted(prefixes))
        await for_each(ranges, lister.take, tasks_count=len(ranges))
    if lister.orphan_count:
        logger.warning("%d .index objects have no .kfs; they are ignored", lister.orphan_count)
    return lister.segments


async def list_again(store: ObjectStore, listed: Iterable[ListedSegment]) -> Sequence[ListedSegment]:
    """List the directories of these segments. Raises StoreError."""
    return await list_directories(store, sorted({f"{segment.key.key.rpartition('/')[0]}/" for segment in listed}))


async def list_directories(store: ObjectStore, prefixes: Iterable[str]) -> Sequence[ListedSegment]:
    """List the segments under these prefixes. Raises StoreError."""
    found: list[ListedSegment] = []
    for prefix in prefixes:
        lister = _Lister(store, prefix, on_progress=lambda count: None)
        await lister.take(_Range("", None))
        found += [segment for segments in lister.segments.values() for segment in segments]
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


@attrs.define(eq=False, repr=False)
class _Lister:
    store: ObjectStore
    prefix: str
    on_progress: Callable[[int], None]
    segments: dict[PartitionId, list[ListedSegment]] = attrs.field(factory=lambda: defaultdict(list), init=False)
    orphan_count: int = attrs.field(default=0, init=False)  # `.index` objects without `.kfs`
    object_count: int = attrs.field(default=0, init=False)
    rest_after: str | None = attrs.field(default=None, init=False)

    async def take(self, range: _Range, *, stops_early: bool = False) -> None:
        """List a range. If it `stops_early` after one full page, the rest begins behind `rest_after`."""
        index_sizes: dict[str, int] = {}
        async with aclosing(self.store.list(self.prefix, start_after=range.after)) as pages:
            async for page in pages:
                within = page
                if range.until is not None and page[-1].key > range.until:
                    within = [info for info in page if info.key <= range.until]
                self._take_page(within, index_sizes)
                if len(within) < len(page):
                    break
                if stops_early and len(page) == LIST_PAGE_MAX_COUNT:
                    # The .kfs of an .index comes next, so it is listed once more.
                    self.rest_after = page[-1].key.removesuffix("index")
                    index_sizes.pop(self.rest_after, None)
                    break
        self.orphan_count += sum(parse_segment_key(f"{name}index") is not None for name in index_sizes)

    def _take_page(self, page: Sequence[ObjectInfo], index_sizes: dict[str, int]) -> None:
        """Add a page, in which an `.index` comes before its `.kfs`."""
        for info in page:
            name = info.key
            if name.endswith(".index"):
                index_sizes[name[:-5]] = info.size_bytes
            elif (key := parse_segment_key(name)) is not None:
                index_size = index_sizes.pop(name[:-3], None)
                told = fingerprint(info.size_bytes, info.etag)
                listed = ListedSegment(key, info.size_bytes, index_size, told)
                self.segments[key.topic_id, key.partition].append(listed)
        self.object_count += len(page)
        self.on_progress(self.object_count)
