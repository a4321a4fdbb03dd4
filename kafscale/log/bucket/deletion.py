"""Delete objects of segments, topics and orphans, some time after they have left the log.

docs/discussion/rooms/log.md ("Deletion") says which objects are orphans. The queue is not durable: a segment is dropped
only when a restart would not read it either. The `.kfs` goes before its `.index`: an `.index` alone is invisible.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from itertools import count
from typing import Generic, TypeVar

import attrs
import trio

from kafscale.concurrency.signals import Signal
from kafscale.errors import DamagedObject, NotFound, StorageFull, StoreError
from kafscale.formats.footer_reading import read_footer
from kafscale.formats.manifest import PartitionId, Segment
from kafscale.formats.resolution import epoch_at
from kafscale.formats.segment import Footer
from kafscale.log.partition.partition import Partition
from kafscale.log.read.footers import Footers
from kafscale.metrics import Counter, Metrics
from kafscale.store.base import ObjectInfo, ObjectStore
from kafscale.store.guarded import NOTHING_TO_PUBLISH, guarded
from kafscale.store.paths import SegmentKey, namespace_prefix, parse_segment_key

logger = logging.getLogger(__name__)

T = TypeVar("T")

DELETED_AT_ONCE_COUNT = 500  # segments; their keys fit into one DeleteObjects request of S3
PAGE_PAUSE_SECONDS = 1.0  # between two pages of a listing: 100,000 segments take three minutes
CANDIDATES_MAX_COUNT = 50_000  # remembered at once, about 20 MB; what is more waits until these are deleted
FAILED_DELETION_PAUSE_SECONDS = 60.0  # the store client has retried already, and no request waits for it


@attrs.define(eq=False, repr=False)
class _Waiting(Generic[T]):
    _heap: list[tuple[float, int, T]] = attrs.field(factory=list, init=False)  # by when it is due
    _numbers: count[int] = attrs.field(factory=count, init=False)
    _wake: Signal = attrs.field(factory=Signal, init=False)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, items: Iterable[T], seconds: float) -> None:
        """Make the items due together, so that they are deleted together."""
        due_at = trio.current_time() + seconds
        for item in items:
            heapq.heappush(self._heap, (due_at, next(self._numbers), item))
        self._wake.set()

    def discard(self, is_unwanted: Callable[[T], bool]) -> None:
        self._heap = [entry for entry in self._heap if not is_unwanted(entry[2])]
        heapq.heapify(self._heap)

    async def due(self, max_count: int) -> Sequence[T]:
        while True:
            self._wake.clear()
            due: list[T] = []
            now = trio.current_time()
            while self._heap and self._heap[0][0] <= now and len(due) < max_count:
                due.append(heapq.heappop(self._heap)[2])
            if due:
                return due
            with trio.move_on_at(self._heap[0][0]) if self._heap else trio.CancelScope():
                await self._wake.wait()


_Dropped = tuple[Segment, int]  # a segment that has left the log, and `decided` of `kafscale.store.guarded`


@attrs.define(eq=False, kw_only=True, repr=False)
class Deleter:
    """Deletes dropped segments when their time has come. `store` is the background view."""

    store: ObjectStore
    footers: Footers
    deleted_count: Counter = attrs.field(factory=Counter, init=False)
    failed_count: Counter = attrs.field(factory=Counter, init=False)
    _waiting: _Waiting[_Dropped] = attrs.field(factory=_Waiting, init=False)

    @property
    def waiting_count(self) -> int:
        """The number of segments whose objects still exist."""
        return len(self._waiting)

    def register(self, metrics: Metrics) -> None:
        help = "Segments whose objects were deleted."
        metrics.adopt_counter("kafscale_segments_deleted_total", help, self.deleted_count)
        help = "Deletions of objects of segments that failed and are tried again."
        metrics.adopt_counter("kafscale_segment_delete_failures_total", help, self.failed_count)

    def drop(self, segments: Iterable[Segment], delay_ms: int) -> None:
        """Delete the objects of these segments, `delay_ms` from now or later."""
        decided = guarded(self.store).decided()
        self._waiting.add(((segment, decided) for segment in segments), delay_ms / 1000)

    def forget(self, partition_id: PartitionId) -> None:
        """Forget a partition that was handed over: its new leader finds these objects as orphans and deletes them."""
        self._waiting.discard(lambda dropped: (dropped[0].key.topic_id, dropped[0].key.partition) == partition_id)

    async def run(self) -> None:
        """Delete what is due, until cancelled. Raises Fenced."""
        while True:
            await self._delete(await self._waiting.due(DELETED_AT_ONCE_COUNT))

    async def _delete(self, dropped: Sequence[_Dropped]) -> None:
        segments = [segment for segment, _ in dropped]
        for segment in segments:
            self.footers.forget(segment)
        keys = [segment.kfs_key for segment in segments], [segment.index_key for segment in segments]
        try:
            await guarded(self.store).delete_in_turn(keys, max(decided for _, decided in dropped))
        except StoreError as exc:
            self.failed_count.value += 1
            logger.error(
                "deleting the objects of %d dropped segments failed and is tried again: %s", len(segments), exc
            )
            self._waiting.add(dropped, FAILED_DELETION_PAUSE_SECONDS)
        else:
            self.deleted_count.value += len(segments)


@attrs.frozen(kw_only=True)
class BuriedTopic:
    """A deleted topic whose objects still exist. `decided` is that of `kafscale.store.guarded`."""

    name: str
    topic_id: bytes
    decided: int = NOTHING_TO_PUBLISH


@attrs.define(eq=False, kw_only=True, repr=False)
class TopicDeleter:
    """Deletes topics' objects when due. `is_deleted`: the topic id is still deleted, and not adopted again."""

    delete_objects: Callable[[BuriedTopic], Awaitable[None]]
    is_deleted: Callable[[bytes], bool]
    _waiting: _Waiting[BuriedTopic] = attrs.field(factory=_Waiting, init=False)

    def bury(self, topic: BuriedTopic, delay_ms: int) -> None:
        self._waiting.add([topic], max(0, delay_ms) / 1000)

    async def run(self) -> None:
        while True:
            for topic in await self._waiting.due(1):
                if self.is_deleted(topic.topic_id):
                    await self.delete_objects(topic)


@attrs.define(eq=False, kw_only=True, repr=False)
class OrphanCollector:
    """Lists the namespace periodically. `store` is the background view.

    find_partition: the open partition of a topic id and an index, or None. deleted_topics: the ids of topics whose
    deletion the metadata remembers. kept_until_ms: when the objects of such a topic may go, in milliseconds since the
    epoch. on_gone: gets the ids of these topics that had no object, after each complete listing.
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
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    _first_seen: dict[SegmentKey, float] = attrs.field(factory=dict, init=False)

    def register(self, metrics: Metrics) -> None:
        help = "Deleted segments to which no manifest referred."
        metrics.adopt_counter("kafscale_orphans_deleted_total", help, self.deleted_count)

    async def run(self) -> None:
        """Collect at every interval, until cancelled. Raises Fenced, and what `on_gone` does."""
        while True:
            await trio.sleep(self.interval_seconds)
            await self.collect()

    async def collect(self) -> None:
        """List everything once and delete the orphans that are due. An error of the store ends this listing."""
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
        """Yield unreferenced segments, each with the time of its last change in milliseconds."""
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
            partition = self.find_partition(key.topic_id, key.partition)
            delay_ms = 0 if partition is None else partition.config.file_delete_delay_ms
            age_seconds = (self.now_ms() - modified_ms) / 1000
            if min(age_seconds, now - self._first_seen[key]) >= max(self.grace_seconds, delay_ms / 1000):
                yield key

    async def _is_orphan(self, key: SegmentKey) -> bool:
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
        orphans = [key for key in list(due) if await self._is_orphan(key)]
        if orphans:
            keys = [key.key for key in orphans], [key.of_kind("index").key for key in orphans]
            store = guarded(self.store)
            await store.delete_in_turn(keys, store.decided())
            self.deleted_count.value += len(orphans)
