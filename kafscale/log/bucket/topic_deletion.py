"""Objects of deleted topics, deleted some time later, as those of dropped segments are by `deletion`.

A Spark job that has planned its reads before the deletion still finishes. What waits here is not durable: the metadata
remembers each deleted topic, so a start buries those again whose time has not come, and what a crash leaves of the
others is collected as orphans (`kafscale.log.bucket.orphans`).
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable
from itertools import count

import attrs
import trio

from kafscale.concurrency.signals import Signal
from kafscale.store.guarded import NOTHING_TO_PUBLISH


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
