"""Footers of segments, kept in a bounded LRU; one GET for many who ask."""

from __future__ import annotations

from collections import OrderedDict

import attrs
import trio

from kafscale.log.footer_reading import read_footer
from kafscale.log.footers_v1 import read_exact_footer_v1
from kafscale.log.manifest import MAX_TIMESTAMP_UNKNOWN, Segment
from kafscale.log.segment import Footer
from kafscale.store.base import ObjectStore
from kafscale.store.paths import SegmentKey


@attrs.define(eq=False)
class FooterStatistics:
    """Since the start: how many were found in the cache, and how many had to be read."""

    hit_count: int = 0
    miss_count: int = 0


@attrs.define(eq=False)
class Footers:
    """A cache of decoded footers; `max_bytes` bounds it, by an estimate of their size in memory."""

    store: ObjectStore
    max_bytes: int
    size_bytes: int = attrs.field(default=0, init=False)
    statistics: FooterStatistics = attrs.field(factory=FooterStatistics, init=False)
    _cached: OrderedDict[SegmentKey, Footer] = attrs.field(factory=OrderedDict, init=False)
    _loading: dict[SegmentKey, trio.Event] = attrs.field(factory=dict, init=False)

    def put(self, segment: Segment, footer: Footer) -> None:
        """Keep the footer of a segment that was just written."""
        self.forget(segment)
        self._cached[segment.key] = footer
        self.size_bytes += _memory_bytes(footer)
        while self.size_bytes > self.max_bytes and len(self._cached) > 1:
            _, oldest = self._cached.popitem(last=False)
            self.size_bytes -= _memory_bytes(oldest)

    def forget(self, segment: Segment) -> None:
        footer = self._cached.pop(segment.key, None)
        if footer is not None:
            self.size_bytes -= _memory_bytes(footer)

    async def get(self, segment: Segment) -> Footer:
        """The segment's footer. Raises NotFound, DamagedObject, StoreError."""
        while True:
            footer = self._cached.get(segment.key)
            if footer is not None:
                self._cached.move_to_end(segment.key)
                self.statistics.hit_count += 1
                return footer
            loading = self._loading.get(segment.key)
            if loading is None:
                return await self._load(segment)
            await loading.wait()

    async def get_with_timestamps(self, segment: Segment) -> Footer:
        """As `get`; where version 1 tells no timestamps, the whole object is read. Raises as `get` does."""
        footer = await self.get(segment)
        if footer.identity.max_timestamp_ms == MAX_TIMESTAMP_UNKNOWN:
            footer = await read_exact_footer_v1(self.store, segment.key)
            self.put(segment, footer)
        return footer

    async def _load(self, segment: Segment) -> Footer:
        self.statistics.miss_count += 1
        loading = self._loading[segment.key] = trio.Event()
        try:
            footer = await read_footer(self.store, segment.key)
            self.put(segment, footer)
            return footer
        finally:
            del self._loading[segment.key]
            loading.set()


def _memory_bytes(footer: Footer) -> int:
    batch_count = sum(len(producer.batches) for producer in footer.producers)
    return 2048 + 24 * len(footer.index.positions) + 400 * len(footer.producers) + 160 * batch_count
