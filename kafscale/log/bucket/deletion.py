"""Objects of segments that have left the log, deleted some time later.

A reader may have found a segment before it was dropped: a fetch, or a Spark job that has planned its reads. So its
objects stay for the topic's `file.delete.delay.ms`.

What waits here is not durable, and need not be. A segment is given to `drop` only when a restart would leave it out by
itself: it lies below a log start that is durable, or a segment of a newer generation in the bucket covers it
(`kafscale.log.rewrite.rewriting`). So a crash at any moment leaves only unread objects: those below the log start
are dropped again by the next broker, those that are covered are found as orphans (`kafscale.log.bucket.orphans`).

The `.kfs` goes before its `.index`: an `.index` alone is invisible, a `.kfs` alone would get a new `.index` at a start.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import count

import attrs
import trio

from kafscale.concurrency.signals import Signal
from kafscale.errors import StoreError
from kafscale.formats.manifest import PartitionId, Segment
from kafscale.log.read.footers import Footers
from kafscale.metrics import Counter, Metrics
from kafscale.store.base import ObjectStore
from kafscale.store.guarded import NOTHING_TO_PUBLISH, guarded

logger = logging.getLogger(__name__)

DELETED_AT_ONCE_COUNT = 500  # segments; their keys fit into one DeleteObjects request of S3
FAILED_DELETION_PAUSE_SECONDS = 60.0  # the store client has retried already, and no request waits for it


@attrs.frozen
class _Dropped:
    """A segment that has left the log; `decided` is as of `kafscale.store.guarded`."""

    segment: Segment
    decided: int

    @property
    def partition_id(self) -> PartitionId:
        return self.segment.key.topic_id, self.segment.key.partition


@attrs.define(eq=False, kw_only=True, repr=False)
class Deleter:
    """Deletes dropped segments when their time has come. `store` is the background view."""

    store: ObjectStore
    footers: Footers
    deleted_count: Counter = attrs.field(factory=Counter, init=False)
    failed_count: Counter = attrs.field(factory=Counter, init=False)
    _waiting: list[tuple[float, int, _Dropped]] = attrs.field(factory=list, init=False)  # a heap, by when
    _numbers: count[int] = attrs.field(factory=count, init=False)
    _wake: Signal = attrs.field(factory=Signal, init=False)

    @property
    def waiting_count(self) -> int:
        """Segments whose objects are still there."""
        return len(self._waiting)

    def register(self, metrics: Metrics) -> None:
        """Register the metrics."""
        help = "Segments whose objects were deleted."
        metrics.adopt_counter("kafscale_segments_deleted_total", help, self.deleted_count)
        help = "Deletions of segments' objects that are tried again."
        metrics.adopt_counter("kafscale_segment_delete_failures_total", help, self.failed_count)

    def drop(self, segments: Iterable[Segment], delay_ms: int) -> None:
        """Delete the objects of these segments, `delay_ms` from now or later."""
        decided = guarded(self.store).decided()
        self._drop((_Dropped(segment, decided) for segment in segments), delay_ms / 1000)

    def forget(self, partition_id: PartitionId) -> None:
        """Forget a partition that was handed over: its new leader finds these objects as orphans and deletes them."""
        self._waiting = [entry for entry in self._waiting if entry[2].partition_id != partition_id]
        heapq.heapify(self._waiting)

    def _drop(self, dropped: Iterable[_Dropped], delay_seconds: float) -> None:
        due = trio.current_time() + delay_seconds
        for dropped_segment in dropped:
            heapq.heappush(self._waiting, (due, next(self._numbers), dropped_segment))
        self._wake.set()

    async def run(self) -> None:
        """Delete what is due, until cancelled. Raises Fenced."""
        while True:
            self._wake.clear()
            if due := self._take_due():
                await self._delete(due)
            else:
                with trio.move_on_at(self._waiting[0][0]) if self._waiting else trio.CancelScope():
                    await self._wake.wait()

    def _take_due(self) -> Sequence[_Dropped]:
        due: list[_Dropped] = []
        now = trio.current_time()
        while self._waiting and self._waiting[0][0] <= now and len(due) < DELETED_AT_ONCE_COUNT:
            due.append(heapq.heappop(self._waiting)[2])
        return due

    async def _delete(self, dropped: Sequence[_Dropped]) -> None:
        segments = [dropped_segment.segment for dropped_segment in dropped]
        for segment in segments:
            self.footers.forget(segment)
        keys = [segment.kfs_key for segment in segments], [segment.index_key for segment in segments]
        try:
            await guarded(self.store).delete_in_turn(keys, max(dropped_segment.decided for dropped_segment in dropped))
        except StoreError as exc:
            self.failed_count.value += 1
            logger.error(
                "deleting the objects of %d dropped segments failed and is tried again: %s", len(segments), exc
            )
            self._drop(dropped, FAILED_DELETION_PAUSE_SECONDS)
        else:
            self.deleted_count.value += len(segments)


@attrs.frozen(kw_only=True)
class BuriedTopic:
    """A deleted topic whose objects are still there. `decided` is as of `kafscale.store.guarded`."""

    name: str
    topic_id: bytes
    decided: int = NOTHING_TO_PUBLISH


@attrs.define(eq=False, kw_only=True, repr=False)
class TopicDeleter:
    """Deletes the objects of one topic after the other, each when its time has come.

    is_deleted: whether a topic id still is that of a deleted topic: it may have been adopted again meanwhile.
    """

    delete_objects: Callable[[BuriedTopic], Awaitable[None]]
    is_deleted: Callable[[bytes], bool]
    _waiting: list[tuple[float, int, BuriedTopic]] = attrs.field(factory=list, init=False)  # a heap, by when
    _numbers: count[int] = attrs.field(factory=count, init=False)
    _wake: Signal = attrs.field(factory=Signal, init=False)

    def bury(self, topic: BuriedTopic, delay_ms: int) -> None:
        """Delete its objects `delay_ms` from now, or later."""
        heapq.heappush(self._waiting, (trio.current_time() + max(0, delay_ms) / 1000, next(self._numbers), topic))
        self._wake.set()

    async def run(self) -> None:
        """Delete what is due, until cancelled."""
        while True:
            self._wake.clear()
            if self._waiting and self._waiting[0][0] <= trio.current_time():
                topic = heapq.heappop(self._waiting)[2]
                if self.is_deleted(topic.topic_id):
                    await self.delete_objects(topic)
            else:
                with trio.move_on_at(self._waiting[0][0]) if self._waiting else trio.CancelScope():
                    await self._wake.wait()
