"""Read ranges of segments for fetches: from the cache, from a read under way, from disk, or by one ranged GET.

A range counts in the fetch budget until the cache has taken it over or it has been sent.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from kafscale.concurrency.byte_budget import ByteBudget
from kafscale.errors import DamagedObject
from kafscale.log.partition.tail import Slices
from kafscale.log.read.checking import are_whole
from kafscale.log.read.disk_cache import DiskCache
from kafscale.log.read.segment_cache import Range, SegmentCache
from kafscale.metrics import Metrics
from kafscale.store.base import ObjectPart, ObjectStore
from kafscale.store.paths import SegmentKey


@attrs.define(eq=False, kw_only=True, repr=False)
class RangeReader:
    """Reads ranges of footers' rows. `on_checked` gets each whole range that was read from the store."""

    store: ObjectStore
    cache: SegmentCache
    budget: ByteBudget
    disk: DiskCache | None = None
    on_checked: list[Callable[[SegmentKey, int, int], None]] = attrs.field(factory=list, init=False)

    def register(self, metrics: Metrics) -> None:
        budget = self.budget
        self.cache.register(metrics)
        if self.disk is not None:
            self.disk.register(metrics)
        metrics.gauge("kafscale_fetch_buffer_bytes", "Bytes of --fetch-buffer-bytes in use.", lambda: budget.used_bytes)
        metrics.gauge(
            "kafscale_fetch_buffer_waiting",
            "Fetches that wait for room in --fetch-buffer-bytes.",
            lambda: budget.waiting_count,
        )
        metrics.count(
            "kafscale_fetch_buffer_waits_total",
            "Fetches that had to wait for room in --fetch-buffer-bytes.",
            lambda: budget.wait_count,
        )

    async def read(self, key: SegmentKey, start: int, end: int, *, may_wait: bool = True) -> Slices | None:
        """Return bytes from `start` to `end` or an earlier row, by at most one GET. The caller owes `release()`.

        Damaged batches are read again; if they are still damaged, `is_damaged` is set. None if the fetch budget is used
        up and the caller may not wait. Raises NotFound, DamagedObject, StoreError.
        """
        slices = self.cache.take(key, start, end)
        if slices is not None:
            self.cache.statistics.hit_count += 1
            self.cache.statistics.hit_bytes += slices.size_bytes
            return slices
        while slices is None:
            loading = self.cache.find(key, start)
            if loading is not None:
                slices = await self._wait_for(loading, start, end)
                continue
            gap_end = self.cache.gap_end(key, start, end if self.disk is None else self.disk.end_of(key, start, end))
            share = await self.budget.share(gap_end - start, may_wait=may_wait)
            if share is None:
                return None
            if self.cache.gap_end(key, start, gap_end) == gap_end:
                return await self._load(self.cache.begin(key, start, gap_end, share))
            share.release()  # while this one waited for the budget, somebody else has begun
            slices = self.cache.take(key, start, end)
        return slices

    async def _wait_for(self, loading: Range, start: int, end: int) -> Slices | None:
        self.cache.statistics.shared_count += 1
        loading.retain()  # it may have no other user, and no room in the cache, once it is there
        try:
            await loading.flight.wait()
            return self.cache.take(loading.key, start, end)
        finally:
            loading.release()

    async def _load(self, wanted: Range) -> Slices:
        self.cache.statistics.miss_count += 1
        try:
            data = None if self.disk is None else await self.disk.read(wanted)
            is_whole = data is not None
            if data is None:
                data, is_whole = await self._read_store(wanted)
        except BaseException as exc:
            self.cache.failed(wanted, exc)
            wanted.release()
            raise
        if is_whole:
            self.cache.landed(wanted, data)
        else:
            self.cache.failed(wanted, None)  # a fetch that waits for it may want whole batches, and reads for itself
        return Slices([data], [wanted], is_damaged=not is_whole)

    async def _read_store(self, wanted: Range) -> tuple[memoryview, bool]:
        """Read the bytes, again if they are damaged. Returns them, and True if all batches are whole."""
        for _ in range(2):
            data = whole(await self.store.get_range(wanted.key.key, wanted.start, wanted.size_bytes), wanted)
            if await are_whole(data):
                for tell in self.on_checked:
                    tell(wanted.key, wanted.start, wanted.end)
                return data, True
        return data, False


def whole(part: ObjectPart, wanted: Range) -> memoryview:
    """Return the bytes of a range. Raises DamagedObject if the object ends before."""
    if len(part.data) != wanted.size_bytes:
        raise DamagedObject(
            f"{wanted.key.key}: cut off, {len(part.data)} of {wanted.size_bytes} bytes at {wanted.start}"
        )
    return memoryview(part.data)
