"""Objects of segments that have left the log, deleted some time later.

Whoever reads a segment may have found it before it was dropped: a fetch, or a Spark job that has planned its reads. So
its objects stay for the topic's `file.delete.delay.ms`.

What waits here is not durable, and need not be. A segment is given to `drop` only when a restart would leave it out by
itself: it lies below a log start that is durable, or a segment of a newer generation in the bucket covers it
(`kafscale.log.rewrite.rewriting`). So a crash at any moment leaves objects that nobody reads: those below the log
start are
dropped again by the next broker, those that are covered are found as orphans (`kafscale.log.bucket.orphans`).

The `.kfs` goes before its `.index`: an `.index` alone is invisible, a `.kfs` alone would get a new `.index` at a start.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Sequence
from itertools import count

import attrs
import trio

from kafscale.errors import StoreError
from kafscale.formats.manifest import Segment
from kafscale.log.read.footers import Footers
from kafscale.metrics import Counter
from kafscale.store.base import ObjectStore

logger = logging.getLogger(__name__)

DELETED_AT_ONCE_COUNT = 500  # segments; their keys fit into one DeleteObjects request of S3
FAILED_DELETION_PAUSE_SECONDS = 60.0  # the store has been retried before; nobody waits for it


@attrs.define(eq=False, kw_only=True)
class Deleter:
    """Deletes dropped segments when their time has come. `store` is the background view."""

    store: ObjectStore
    footers: Footers
    deleted_count: Counter = attrs.field(factory=Counter)
    failed_count: Counter = attrs.field(factory=Counter)
    _waiting: list[tuple[float, int, Segment]] = attrs.field(factory=list, init=False)  # a heap, by when
    _numbers: count[int] = attrs.field(factory=count, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def waiting_count(self) -> int:
        """Segments whose objects are still there."""
        return len(self._waiting)

    def drop(self, segments: Iterable[Segment], delay_ms: int) -> None:
        """Delete the objects of these segments, `delay_ms` from now or later."""
        due = trio.current_time() + delay_ms / 1000
        for segment in segments:
            heapq.heappush(self._waiting, (due, next(self._numbers), segment))
        self._wake.set()

    async def run(self) -> None:
        """Delete what is due, until cancelled."""
        while True:
            self._wake = trio.Event()
            if due := self._take_due():
                await self._delete(due)
            else:
                with trio.move_on_at(self._waiting[0][0]) if self._waiting else trio.CancelScope():
                    await self._wake.wait()

    def _take_due(self) -> Sequence[Segment]:
        due: list[Segment] = []
        now = trio.current_time()
        while self._waiting and self._waiting[0][0] <= now and len(due) < DELETED_AT_ONCE_COUNT:
            due.append(heapq.heappop(self._waiting)[2])
        return due

    async def _delete(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self.footers.forget(segment)
        try:
            await self.store.delete([segment.kfs_key for segment in segments])
            await self.store.delete([segment.index_key for segment in segments])
        except StoreError as exc:
            self.failed_count.value += 1
            logger.error(
                "deleting the objects of %d dropped segments failed and is tried again: %s", len(segments), exc
            )
            self.drop(segments, round(FAILED_DELETION_PAUSE_SECONDS * 1000))
        else:
            self.deleted_count.value += len(segments)
