"""When to flush which partition. What a flush does is in `kafscale.log.upload`.

One task per partition that is being flushed, in the flusher's nursery; a partition that has nothing to flush has no
task and no timer. A partition is due when what it may flush is as large as a segment, or has waited for the flush
interval, or when the pool runs short and it is among those that hold most; under `segment` durability at once.

A partition is in one of four states: clean, waiting, due, or being flushed. What a partition marks while it is being
flushed is not looked at before that has ended, so there is one flush at a time per partition.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Iterator, Sequence

import attrs
import trio

from kafscale.errors import DamagedObject, StoreError
from kafscale.log.chunks import ChunkPool
from kafscale.log.nurseries import ungrouped
from kafscale.log.partition import Partition
from kafscale.log.upload import Uploader
from kafscale.metrics import Counter, Histogram

logger = logging.getLogger(__name__)

FAILED_FLUSH_PAUSE_SECONDS = 5.0  # the store has been retried for long before this; nothing is lost by waiting
PRESSURE_RELIEF_FRACTION = 0.5  # under pressure, flush the largest tails until this much of what is used is under way


@attrs.define(eq=False, kw_only=True)
class Flusher:
    """Owns a task per partition being flushed. `immediate` is set under `segment` durability."""

    uploader: Uploader
    pool: ChunkPool
    interval_seconds: float
    immediate: bool
    duration_seconds: Histogram = attrs.field(factory=Histogram)
    failed_count: Counter = attrs.field(factory=Counter)
    _waiting: dict[Partition, float] = attrs.field(factory=dict, init=False)  # until when, and in that order
    _due: dict[Partition, None] = attrs.field(factory=dict, init=False)
    _flushing: set[Partition] = attrs.field(factory=set, init=False)
    _under_pressure: bool = attrs.field(default=False, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)
    _flush_ended: trio.Event = attrs.field(factory=trio.Event, init=False)

    def mark(self, partition: Partition) -> None:
        """A partition got something to flush, or has grown to a segment's size: `Partition.on_dirty`."""
        if partition in self._flushing:
            return
        if self.immediate or partition.flushable_bytes >= partition.segment_bytes:
            self._make_due(partition)
        elif partition not in self._waiting and partition not in self._due:
            self._waiting[partition] = trio.current_time() + self.interval_seconds
            if len(self._waiting) == 1:
                self._wake.set()

    def relieve(self) -> None:
        """The pool runs short: `ChunkPool.on_pressure`."""
        self._under_pressure = True
        self._wake.set()

    def forget(self, partition: Partition) -> None:
        """The partition is closed. A flush of it that is under way goes on, without effect."""
        self._waiting.pop(partition, None)
        self._due.pop(partition, None)

    def oldest_seconds(self) -> float:
        """How long the longest-waiting tail has been waiting, or trying."""
        now = trio.current_time()
        dirty = (*self._waiting, *self._due, *self._flushing)
        return max((now - p.dirty_since for p in dirty if p.dirty_since is not None), default=0.0)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start flushes as they become due, until cancelled. Raises Fenced, StorageFailed."""
        with ungrouped():
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    self._wake = trio.Event()
                    for partition in self._take_due():
                        self._flushing.add(partition)
                        nursery.start_soon(self._flush, partition)
                    with trio.move_on_at(next(iter(self._waiting.values()), math.inf)):
                        await self._wake.wait()

    async def flush_all(self) -> None:
        """Flush everything that may be flushed now, and wait until it is in the bucket, not for what comes later.

        `run` must be running. Goes on trying for as long as the store fails: the caller sets the limit.
        """
        wanted = {p: p.flushable_offset for p in (*self._waiting, *self._due, *self._flushing)}
        for partition in tuple(self._waiting):
            self._make_due(partition)
        for partition, end_offset in wanted.items():
            while partition.flushed_offset < end_offset and not partition.closed:
                if partition in self._waiting:
                    self._make_due(partition)
                await self._flush_ended.wait()

    async def wait_ended(self, topic_id: bytes) -> None:
        """Wait until no flush of a closed topic's partitions is under way any more."""
        while any(partition.topic_id == topic_id for partition in self._flushing):
            await self._flush_ended.wait()

    # ---- what is due ------------------------------------------------------------------------------------------

    def _make_due(self, partition: Partition) -> None:
        self._waiting.pop(partition, None)
        self._due[partition] = None
        self._wake.set()

    def _take_due(self) -> Sequence[Partition]:
        now = trio.current_time()
        while self._waiting and next(iter(self._waiting.values())) <= now:
            self._make_due(next(iter(self._waiting)))
        if self._under_pressure:
            self._under_pressure = False
            for partition in self._largest():
                self._make_due(partition)
        taken = tuple(self._due)
        self._due.clear()
        return taken

    def _largest(self) -> Iterator[Partition]:
        """Those that hold most, until enough is under way."""
        wanted = self.pool.used_bytes * PRESSURE_RELIEF_FRACTION
        wanted -= sum(partition.held_bytes for partition in (*self._flushing, *self._due))
        by_size = [(-partition.held_bytes, id(partition), partition) for partition in self._waiting]
        heapq.heapify(by_size)
        while wanted > 0 and by_size:
            size, _, partition = heapq.heappop(by_size)
            wanted += size
            yield partition

    # ---- one flush --------------------------------------------------------------------------------------------

    async def _flush(self, partition: Partition) -> None:
        started = trio.current_time()
        failed = False
        try:
            plan = partition.prepare_flush()
            if plan is not None:
                await self.uploader.flush(partition, plan)
                self.duration_seconds.observe(trio.current_time() - started)
        except (StoreError, DamagedObject) as exc:
            failed = True
            self.failed_count.value += 1
            logger.error("flush of %s failed and is tried again: %s", partition, exc)
            await trio.sleep(FAILED_FLUSH_PAUSE_SECONDS)
        finally:
            self._flushing.discard(partition)
            self._look_again(partition, at_once=failed)
            if self.pool.statistics().waiting_count:
                self.relieve()  # what has been freed was not enough
            self._flush_ended.set()
            self._flush_ended = trio.Event()

    def _look_again(self, partition: Partition, *, at_once: bool) -> None:
        """What came in meanwhile waits for the next flush; what could not be uploaded has waited already."""
        if partition.closed or not partition.flushable_bytes:
            return
        if at_once:
            self._make_due(partition)
        else:
            self.mark(partition)
