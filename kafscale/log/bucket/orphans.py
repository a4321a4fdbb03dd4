"""Orphans: objects in the namespace that nothing refers to, found by listing it, and deleted after a grace period.

Of a partition that is open, a segment that its manifest does not refer to is an orphan only if one of these holds, each
of which stays true once it is:

    it lies below the log start         dropped by retention or DeleteRecords, and a crash came before its deletion
    newer segments cover it             merged, and a crash came before its deletion, or written once more by another
                                        broker, from the same write-ahead log
    it is an `.index` without `.kfs`    a deletion was cut short

and never at or above the flushed offset, where an upload may be under way. A newer generation that the manifest does
not refer to, but that nothing covers, stays: the next restart will prefer it. So does what is late: what a broker wrote
after another one had taken over (`kafscale.formats.resolution`), while it is not below the log start. It may have been
acknowledged, and exists nowhere else, so it is told and counted instead.

Of a partition that is not open, objects are orphans only if the metadata remembers the topic's deletion. Objects of any
other topic stay: their metadata may be lost, or on the way.

An object is deleted when it is `grace_seconds` old by the store's clock, and has been an orphan for as long in this
process, and in a live topic for `file.delete.delay.ms` too; in a deleted one, not before that since the deletion.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing

import attrs
import trio

from kafscale.errors import DamagedObject, NotFound, StorageFull, StoreError
from kafscale.formats.footer_reading import read_footer
from kafscale.formats.resolution import epoch_at
from kafscale.formats.segment import Footer
from kafscale.log.partition.partition import Partition
from kafscale.metrics import Counter, Metrics
from kafscale.store.base import ObjectInfo, ObjectStore
from kafscale.store.guarded import guarded
from kafscale.store.paths import SegmentKey, namespace_prefix, parse_segment_key

logger = logging.getLogger(__name__)

PAGE_PAUSE_SECONDS = 1.0  # between two pages of a listing: 100,000 segments take three minutes
CANDIDATES_MAX_COUNT = 50_000  # remembered at once, about 20 MB; what is more waits until these are deleted


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@attrs.define(eq=False, kw_only=True, repr=False)
class OrphanCollector:
    """Lists the namespace once in a while. `store` is the background view.

    find_partition: the open partition of a topic id and an index, or None.
    deleted_topics: the ids of topics whose deletion the metadata remembers.
    kept_until_ms: when the objects of such a topic may go, in milliseconds since the epoch.
    on_gone: told after each complete listing which of these ids had no object.
    """

    store: ObjectStore
    namespace: str
    find_partition: Callable[[bytes, int], Partition | None]
    deleted_topics: Callable[[], Collection[bytes]]
    kept_until_ms: Callable[[bytes], int] = lambda topic_id: 0
    on_gone: Callable[[Collection[bytes]], Awaitable[None]]
    interval_seconds: float
    grace_seconds: float
    deleted_count: Counter = attrs.field(factory=Counter, init=False)
    now_ms: Callable[[], int] = _now_ms
    _first_seen: dict[SegmentKey, float] = attrs.field(factory=dict, init=False)

    def register(self, metrics: Metrics) -> None:
        """Register the metrics."""
        help = "Segments that nothing referred to and that were deleted."
        metrics.adopt_counter("kafscale_orphans_deleted_total", help, self.deleted_count)

    async def run(self) -> None:
        """Collect at every interval, until cancelled. Raises Fenced, and what `on_gone` does."""
        while True:
            await trio.sleep(self.interval_seconds)
            await self.collect()

    async def collect(self) -> None:
        """List everything once; delete the orphans whose time has come. An error of the store ends this listing."""
        deleted_before = self.deleted_count.value
        seen: set[SegmentKey] = set()
        with_objects: set[bytes] = set()
        deleted_topics = frozenset(self.deleted_topics())
        try:
            async with aclosing(self.store.list(namespace_prefix(self.namespace))) as pages:
                async for page in pages:
                    candidates = list(self._candidates(page))
                    seen.update(key for key, _ in candidates)
                    with_objects.update(key.topic_id for key, _ in candidates if key.topic_id in deleted_topics)
                    await self._delete(self._due(candidates))
                    await trio.sleep(PAGE_PAUSE_SECONDS)
        except StoreError as exc:
            logger.error("looking for orphaned objects stopped and waits for the next check: %s", exc)
            return
        self._first_seen = {key: since for key, since in self._first_seen.items() if key in seen}
        if self.deleted_count.value > deleted_before:
            logger.info("deleted the objects of %d orphaned segments", self.deleted_count.value - deleted_before)
        try:
            await self.on_gone(deleted_topics - with_objects)
        except (StorageFull, StoreError) as exc:  # the metadata is where the store is, if several brokers share it
            logger.error("deleted topics without objects are forgotten later: %s", exc)

    # ---- which --------------------------------------------------------------------------------------------------

    def _candidates(self, page: Sequence[ObjectInfo]) -> Iterable[tuple[SegmentKey, int]]:
        """Segments that nothing refers to, each with the time of its last change in milliseconds."""
        for info in page:
            key = parse_segment_key(info.key)
            if key is not None and self._is_unreferenced(key.of_kind("kfs")):
                yield key.of_kind("kfs"), info.modified_ms

    def _is_unreferenced(self, key: SegmentKey) -> bool:
        partition = self.find_partition(key.topic_id, key.partition)
        if partition is None:
            return key.topic_id in self.deleted_topics()
        return key.base_offset < partition.flushed_offset and not partition.manifest.refers_to(key)

    def _due(self, candidates: Iterable[tuple[SegmentKey, int]]) -> Iterable[SegmentKey]:
        now = trio.current_time()
        youngest_ms: dict[SegmentKey, int] = {}
        for key, modified_ms in candidates:
            youngest_ms[key] = max(modified_ms, youngest_ms.get(key, 0))
        for key, modified_ms in youngest_ms.items():
            if key not in self._first_seen:
                if len(self._first_seen) >= CANDIDATES_MAX_COUNT:
                    continue
                self._first_seen[key] = now
            grace_seconds = self._grace_seconds(key)
            age_seconds = (self.now_ms() - modified_ms) / 1000
            if min(age_seconds, now - self._first_seen[key]) >= grace_seconds:
                yield key

    def _grace_seconds(self, key: SegmentKey) -> float:
        partition = self.find_partition(key.topic_id, key.partition)
        delay_ms = 0 if partition is None else partition.config.file_delete_delay_ms
        return max(self.grace_seconds, delay_ms / 1000)

    async def _is_orphan(self, key: SegmentKey) -> bool:
        """Tell whether nothing refers to an object any more. Raises StoreError."""
        if self.find_partition(key.topic_id, key.partition) is None:
            return self._is_unreferenced(key) and self.now_ms() >= self.kept_until_ms(key.topic_id)
        try:
            footer = await read_footer(self.store, key)
        except NotFound:
            footer = None
        except DamagedObject as exc:
            logger.warning("an object that nothing refers to is damaged, and stays: %s", exc)
            return False
        return self._is_unreferenced(key) and self._has_no_use(key, footer)

    def _has_no_use(self, key: SegmentKey, footer: Footer | None) -> bool:
        partition = self.find_partition(key.topic_id, key.partition)
        if partition is None or footer is None:
            return True
        if footer.last_offset < partition.log_start_offset:
            partition.late.discard(key)
            return True
        if epoch_at(footer.epochs, footer.last_offset) != epoch_at(partition.epochs, footer.last_offset):
            partition.set_aside([key])
            return False
        return partition.manifest.covers(key, footer.last_offset)

    # ---- deletion -----------------------------------------------------------------------------------------------

    async def _delete(self, due: Iterable[SegmentKey]) -> None:
        """The `.kfs` before the `.index`, as ever. Raises StoreError."""
        orphans = [key for key in list(due) if await self._is_orphan(key)]
        if orphans:
            keys = [key.key for key in orphans], [key.of_kind("index").key for key in orphans]
            store = guarded(self.store)
            await store.delete_in_turn(keys, store.decided())
            self.deleted_count.value += len(orphans)
