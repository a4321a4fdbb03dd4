"""Footers of segments in a bounded LRU cache, one GET for many readers; and the aborted transactions that they tell.

`read_committed` consumers drop records of aborted transactions (KIP-98). A transaction is recorded in the segment with
its marker, which may come some segments behind its records. The search ends at a segment that is stable up to the end
of the read: transactions aborted behind it begin there or later. The manifest tells which segments have none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Generator, Sequence

import attrs

from kafscale.concurrency.sharing import Flight
from kafscale.errors import DamagedObject, NotFound
from kafscale.formats.footer_reading import FOOTER_READ_BYTES, footer_in_tail, read_footer_and_tail
from kafscale.formats.manifest import MAX_TIMESTAMP_UNKNOWN, Manifest, Segment
from kafscale.formats.segment import Footer
from kafscale.formats.segment_v1 import read_exact_footer_v1
from kafscale.formats.transactions import AbortedTransaction
from kafscale.log.partition.partition import Partition
from kafscale.log.read.checking import is_whole
from kafscale.log.read.segment_cache import SegmentCache
from kafscale.lru import LruCache
from kafscale.metrics import Metrics
from kafscale.store.base import ObjectPart, ObjectStore
from kafscale.store.paths import SegmentKey
from kafscale.store.wrappers.limiter import PrefetchStore


@attrs.define(eq=False, repr=False)
class Footers:
    """A cache of decoded footers, bounded by `max_bytes` of estimated memory.

    Cached footers have no `producers`, which readers never need. `cache` gets the batches that come along with a
    footer.
    """

    store: ObjectStore
    max_bytes: int
    cache: SegmentCache | None = None
    hit_count: int = attrs.field(default=0, init=False)
    miss_count: int = attrs.field(default=0, init=False)
    _cached: LruCache[SegmentKey, Footer] = attrs.field(init=False)
    _loading: dict[SegmentKey, Flight] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._cached = LruCache(self.max_bytes, _memory_bytes)

    @property
    def size_bytes(self) -> int:
        return self._cached.size

    def register(self, metrics: Metrics) -> None:
        metrics.gauge("kafscale_footer_cache_bytes", "Bytes of segment footers in memory.", lambda: self.size_bytes)
        metrics.counts(
            "kafscale_footer_lookups_total",
            "Segment footers wanted: in memory (hit) or not (miss).",
            "result",
            lambda: {"hit": self.hit_count, "miss": self.miss_count},
        )

    def put(self, segment: Segment, footer: Footer) -> None:
        self._cached.put(segment.key, attrs.evolve(footer, producers=()) if footer.producers else footer)

    def forget(self, segment: Segment) -> None:
        self._cached.pop(segment.key)
        if self.cache is not None:
            self.cache.forget(segment.key)

    def get_nowait(self, segment: Segment) -> Footer | None:
        return self._cached.get(segment.key)

    async def get(self, segment: Segment) -> Footer:
        """Return the segment's footer; its producers may be missing. Raises NotFound, DamagedObject, StoreError."""
        while (footer := self.get_nowait(segment)) is None:
            loading = self._loading.get(segment.key)
            if loading is None:
                self.miss_count += 1
                return await self._load(segment)
            await loading.wait()
        self.hit_count += 1
        return footer

    async def get_with_timestamps(self, segment: Segment) -> Footer:
        """Return a footer with timestamps; for version 1 the whole object is read. Raises as `get`."""
        footer = await self.get(segment)
        if footer.identity.max_timestamp_ms == MAX_TIMESTAMP_UNKNOWN:
            footer = await read_exact_footer_v1(self.store, segment.key)
            self.forget(segment)  # its ranges begin and end at the rows of the other footer
            self.put(segment, footer)
        return footer

    async def max_timestamp_ms(self, manifest: Manifest, segment: Segment) -> int:
        """Return the largest timestamp of a segment; the manifest learns it if it was unknown since a restart."""
        if segment.max_timestamp_ms != MAX_TIMESTAMP_UNKNOWN:
            return segment.max_timestamp_ms
        latest_ms = (await self.get_with_timestamps(segment)).identity.max_timestamp_ms
        manifest.learn_timestamp(attrs.evolve(segment, max_timestamp_ms=latest_ms))
        return latest_ms

    async def prefetch(self, segment: Segment, store: PrefetchStore) -> None:
        """Read a footer ahead, unless the store has no free place or one GET is not enough.

        A fetch that waits for it then reads for itself. Raises NotFound, DamagedObject, StoreError.
        """
        if segment.key in self._cached or segment.key in self._loading:
            return
        loading = self._loading[segment.key] = Flight()
        try:
            part = await store.get_tail(segment.kfs_key, FOOTER_READ_BYTES)
            footer = None if part is None else footer_in_tail(part, segment.key)
            if part is not None and footer is not None:
                self._loaded(segment, footer, part)
        finally:
            del self._loading[segment.key]
            loading.land()

    async def _load(self, segment: Segment) -> Footer:
        loading = self._loading[segment.key] = Flight()
        error: BaseException | None = None
        try:
            footer, part = await read_footer_and_tail(self.store, segment.key)
            self._loaded(segment, footer, part)
            return footer
        except BaseException as exc:
            error = exc
            raise
        finally:
            del self._loading[segment.key]
            loading.land(error)

    def _loaded(self, segment: Segment, footer: Footer, part: ObjectPart) -> None:
        """Keep the footer, and the batches that came along with it: of a small segment, all of them."""
        self.put(segment, footer)
        if self.cache is not None:
            tail_start = part.object_size_bytes - len(part.data)
            start = footer.row_start(bisect_left(footer.index.positions, tail_start))
            batches = memoryview(part.data)[start - tail_start : footer.end_position - tail_start]
            if is_whole(batches):
                self.cache.put(segment.key, start, batches)


def _memory_bytes(footer: Footer) -> int:
    return 2048 + 24 * len(footer.index.positions)


def aborted_in(footer: Footer, offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
    """Return the aborted transactions of a footer that have offsets from `offset` to `end_offset` (exclusive)."""
    return [transaction for transaction in footer.aborted if transaction.overlaps(offset, end_offset)]


def aborted_behind_nowait(
    footers: Footers, partition: Partition, segment: Segment, end_offset: int
) -> Sequence[AbortedTransaction] | None:
    """Return what `aborted_behind` does, or None if a needed footer is not in memory."""
    search = _search(partition, segment, end_offset)
    try:
        wanted = next(search)
        while (footer := footers.get_nowait(wanted)) is not None:
            wanted = search.send(footer)
    except StopIteration as ended:
        found: Sequence[AbortedTransaction] = ended.value
        return found
    return None


async def aborted_behind(
    footers: Footers,
    partition: Partition,
    segment: Segment,
    end_offset: int,
    settle: Callable[[Partition, Segment, DamagedObject], Awaitable[None]],
) -> Sequence[AbortedTransaction]:
    """Return aborted transactions that began before `end_offset` and whose markers are behind a segment.

    `settle` rebuilds or removes a damaged segment. Raises NotFound, StoreError, and what `settle` does.
    """
    search = _search(partition, segment, end_offset)
    try:
        wanted = next(search)
        while True:
            footer = None
            try:
                footer = await footers.get(wanted)
            except NotFound:
                footers.forget(wanted)
                if partition.manifest.refers_to(wanted.key):
                    raise
            except DamagedObject as exc:
                await settle(partition, wanted, exc)
            wanted = search.send(footer)
    except StopIteration as ended:
        found: Sequence[AbortedTransaction] = ended.value
        return found


def _search(
    partition: Partition, segment: Segment, end_offset: int
) -> Generator[Segment, Footer | None, Sequence[AbortedTransaction]]:
    """Search behind a segment. Yields segments, and expects their footers, or None to look again."""
    found: list[AbortedTransaction] = []
    behind = segment.last_offset + 1
    while behind < partition.flushed_offset:
        following = partition.manifest.find(behind)
        if following is None:
            break
        stable_end = following.stable_end
        if following.aborted_count:  # or if that is not known
            footer = yield following
            if footer is None:
                continue
            found += aborted_in(footer, behind, end_offset)
            stable_end = footer.stable_end
        if stable_end >= end_offset:
            return found
        behind = following.last_offset + 1
    return [*found, *partition.transactions.aborted_between(behind, end_offset)]
