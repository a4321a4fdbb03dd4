"""The streams of brokers whose partitions are followed here, and the fetches that wait for new records in them.

A stream is looked at while a fetch waits for one of its partitions: one GET for each look, however many partitions and
fetches wait, and none while no fetch waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from kafscale.concurrency.signals import Signal
from kafscale.errors import DamagedObject, StoreError
from kafscale.formats.manifest import PartitionId
from kafscale.log.partition.partition import FetchWaiter
from kafscale.log.wal.streams import Contents, FollowedObject, FollowedStream
from kafscale.store.base import ObjectStore

LOOK_LEAST_SECONDS = 0.05  # from one look at a stream to the next, when something came
LOOK_MOST_SECONDS = 0.25  # when nothing comes for long: 4 GETs a second are 4 $ a month
LOOK_GROWTH = 1.25
RETRY_SECONDS = 1.0
CONTENTS_MAX_BYTES = 64 << 20  # of objects that came last; what is older is read from the bucket when it is wanted

logger = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False)
class _Followed:
    stream: FollowedStream
    pause_seconds: float = LOOK_LEAST_SECONDS
    is_watched: bool = False  # somebody looks at it again and again


@attrs.define(eq=False, kw_only=True, repr=False)
class Tails:
    """Follows streams of incarnations. `run` it.

    `is_current` tells of which incarnations that is. `on_object` is told what has come in a stream, before those are
    woken who wait for it; `on_lost` that a stream can't be read, or has to be anew; `on_evicted` that the bytes of an
    object go. `stream_of` finds the stream that a partition is read from, if it is.
    """

    store: ObjectStore
    namespace: str
    is_current: Callable[[int], bool]
    stream_of: Callable[[PartitionId], FollowedStream | None]
    on_object: Callable[[FollowedStream, FollowedObject], None]
    on_lost: Callable[[FollowedStream], None]
    on_evicted: Callable[[FollowedObject], None]
    contents: Contents = attrs.field(
        default=attrs.Factory(lambda self: Contents(CONTENTS_MAX_BYTES, self.on_evicted), takes_self=True), init=False
    )
    _followed: dict[int, _Followed] = attrs.field(factory=dict, init=False)  # by incarnation
    _waiting: dict[PartitionId, set[FetchWaiter]] = attrs.field(factory=dict, init=False)
    _more: Signal = attrs.field(factory=Signal, init=False)

    def stream(self, incarnation: int) -> FollowedStream:
        """Return the stream of an incarnation that serves."""
        followed = self._followed.get(incarnation)
        if followed is None:
            self._followed = {number: kept for number, kept in self._followed.items() if self.is_current(number)}
            followed = self._followed[incarnation] = _Followed(self._new(incarnation))
        return followed.stream

    def _new(self, incarnation: int) -> FollowedStream:
        stream = FollowedStream(
            store=self.store,
            namespace=self.namespace,
            incarnation=incarnation,
            contents=self.contents,
            on_object=lambda followed: self._take(stream, followed),
            on_lost=self.on_lost,
        )
        return stream

    def _take(self, stream: FollowedStream, followed: FollowedObject) -> None:
        self.on_object(stream, followed)
        for partition_id, batches in followed.batches.items():
            size_bytes = sum(batch.length_bytes for batch in batches)
            for waiter in self._waiting.get(partition_id, ()):
                if waiter.committed_only:
                    waiter.event.set()
                else:
                    waiter.became_readable(size_bytes)

    @contextmanager
    def watching(self, partition_id: PartitionId, waiter: FetchWaiter) -> Iterator[None]:
        """Wake a fetch when more of this partition can be read, or it is to be looked for elsewhere."""
        waiters = self._waiting.setdefault(partition_id, set())
        waiters.add(waiter)
        self._more.set()
        try:
            yield
        finally:
            waiters.discard(waiter)
            if not waiters:
                self._waiting.pop(partition_id, None)

    def wake(self, partition_id: PartitionId) -> None:
        """Wake the fetches that wait for a partition."""
        for waiter in self._waiting.get(partition_id, ()):
            waiter.event.set()

    def watched(self) -> Iterator[PartitionId]:
        """Iterate over the partitions that somebody waits for."""
        yield from tuple(self._waiting)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look at streams for those who wait, until cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                await self._more.wait()
                self._more.clear()
                for followed in self._wanted():
                    if not followed.is_watched:
                        followed.is_watched = True
                        nursery.start_soon(self._watch, followed)

    def _wanted(self) -> list[_Followed]:
        streams = {
            stream.incarnation for partition_id in self._waiting if (stream := self.stream_of(partition_id)) is not None
        }
        return [followed for incarnation in streams if (followed := self._followed.get(incarnation)) is not None]

    async def _watch(self, followed: _Followed) -> None:
        stream = followed.stream
        try:
            await trio.sleep_until(stream.looked_at + followed.pause_seconds)
            while not stream.has_ended and followed in self._wanted():
                number = stream.next_number
                try:
                    await stream.catch_up()
                except (StoreError, DamagedObject) as exc:
                    logger.warning("the stream of incarnation %d can't be read: %s", stream.incarnation, exc)
                    self.on_lost(stream)  # who waits is sent to the leader
                    await trio.sleep(RETRY_SECONDS)
                longer = min(followed.pause_seconds * LOOK_GROWTH, LOOK_MOST_SECONDS)
                followed.pause_seconds = longer if stream.next_number == number else LOOK_LEAST_SECONDS
                await trio.sleep(followed.pause_seconds)
        finally:
            followed.is_watched = False
