"""When to flush which partition. What a flush does is in `kafscale.log.upload`.

One task per partition that is being flushed, in the flusher's nursery; a partition that has nothing to flush has no
task and no timer. A partition is due when its tail is as large as a segment, or has waited for the flush interval, or
when the pool runs short and it is among those that hold most; under `segment` durability it is due at once.
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
    _dirty: dict[Partition, None] = attrs.field(factory=dict, init=False)  # in order of `dirty_since`
    _full: set[Partition] = attrs.field(factory=set, init=False)
    _flushing: set[Partition] = attrs.field(factory=set, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)
    _idle: trio.Event = attrs.field(factory=trio.Event, init=False)
    _under_pressure: bool = attrs.field(default=False, init=False)
    _flush_all: bool = attrs.field(default=False, init=False)

    def mark(self, partition: Partition) -> None:
        """A partition got something to flush, or has grown large: `Partition.on_dirty`."""
        self._dirty.setdefault(partition)
        if partition.tail.size_bytes >= partition.segment_bytes:
            self._full.add(partition)
            self._wake.set()
        elif self.immediate or len(self._dirty) == 1:
            self._wake.set()

    def relieve(self) -> None:
        """The pool runs short: `ChunkPool.on_pressure`."""
        self._under_pressure = True
        self._wake.set()

    def forget(self, partition: Partition) -> None:
        """The partition is closed."""
        self._dirty.pop(partition, None)
        self._full.discard(partition)

    def oldest_seconds(self) -> float:
        """How long the longest-waiting tail has been waiting."""
        now = trio.current_time()
        return max((now - p.dirty_since for p in self._dirty if p.dirty_since is not None), default=0.0)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start flushes as they become due, until cancelled. Raises Fenced."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                self._wake = trio.Event()
                for partition in self._take_due():
                    self._flushing.add(partition)
                    nursery.start_soon(self._flush, partition)
                with trio.move_on_at(self._next_due_at()):
                    await self._wake.wait()

    async def flush_all(self) -> None:
        """Flush everything that may be flushed now, and wait until it is in the bucket."""
        self._flush_all = True
        try:
            while self._dirty or self._flushing:
                self._idle = trio.Event()
                self._wake.set()
                await self._idle.wait()
        finally:
            self._flush_all = False

    # ---- what is due ------------------------------------------------------------------------------------------

    def _take_due(self) -> Sequence[Partition]:
        due = dict.fromkeys(self._full)
        due.update(dict.fromkeys(self._aged()))
        if self._under_pressure:
            self._under_pressure = False
            due.update(dict.fromkeys(self._largest()))
        taken = [partition for partition in due if partition not in self._flushing]
        for partition in taken:
            self.forget(partition)
        return taken

    def _aged(self) -> Iterator[Partition]:
        now = trio.current_time()
        for partition in self._dirty:
            assert partition.dirty_since is not None
            if not (self.immediate or self._flush_all) and now - partition.dirty_since < self.interval_seconds:
                break
            yield partition

    def _largest(self) -> Iterator[Partition]:
        """Those that hold most, until enough is under way."""
        wanted = self.pool.used_bytes * PRESSURE_RELIEF_FRACTION - sum(p.tail.size_bytes for p in self._flushing)
        by_size = [(-partition.tail.size_bytes, id(partition), partition) for partition in self._dirty]
        heapq.heapify(by_size)
        while wanted > 0 and by_size:
            size, _, partition = heapq.heappop(by_size)
            wanted += size
            yield partition

    def _next_due_at(self) -> float:
        for partition in self._dirty:
            if partition not in self._flushing:
                assert partition.dirty_since is not None
                return partition.dirty_since + self.interval_seconds
        return math.inf

    # ---- one flush --------------------------------------------------------------------------------------------

    async def _flush(self, partition: Partition) -> None:
        started = trio.current_time()
        try:
            plan = partition.prepare_flush()
            if plan is not None:
                await self.uploader.flush(partition, plan)
                self.duration_seconds.observe(trio.current_time() - started)
        except (StoreError, DamagedObject) as exc:
            self.failed_count.value += 1
            logger.error("flush of %s failed and is tried again: %s", partition, exc)
            await trio.sleep(FAILED_FLUSH_PAUSE_SECONDS)
        finally:
            self._flushing.discard(partition)
            self._mark_again(partition)

    def _mark_again(self, partition: Partition) -> None:
        """What came in meanwhile, what was not durable yet, or what could not be uploaded, is due again later."""
        if partition.tail.batches and not partition.closed:
            if partition not in self._dirty:
                partition.dirty_since = trio.current_time()
            self.mark(partition)
        self._wake.set()
        if not self._flushing:
            self._idle.set()
