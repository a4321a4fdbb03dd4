"""Choose which partition to flush and when. `kafscale.log.flush.upload` does one flush.

A partition is clean, waiting, due, or being flushed, by one task at a time; docs/discussion/rooms/log.md says when
it is due. Partitions with the oldest batches go first, which frees the oldest files of the log.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter

import attrs
import trio

from kafscale.concurrency.nurseries import ungrouped
from kafscale.concurrency.signals import Signal
from kafscale.errors import DamagedObject, StoreError
from kafscale.formats.manifest import PartitionId
from kafscale.log.flush.upload import Uploader
from kafscale.log.partition.chunks import ChunkPool
from kafscale.log.partition.partition import FetchWaiter, Partition
from kafscale.log.wal.journal import Journal
from kafscale.metrics import Counter, Histogram, Metrics

OBJECTS_PER_FLUSH = 2  # .kfs and .index
LOG_PUTS_PER_EARLY_PUT = 4
BURST_FRACTION = 1 / 6
LEFT_TO_AGE_FRACTION = 1 / 4
ROUNDING_SECONDS = 1e-6


def early_after(wanted_count: int, dirty_count: int) -> float:
    """Return after how many small objects of the log a partition is flushed early; infinite for 0.

    At least eight for each partition with unflushed records: a flush is two PUTs, so early flushes add at most a
    quarter to the PUTs of the log.
    """
    if not wanted_count:
        return math.inf
    return max(wanted_count, LOG_PUTS_PER_EARLY_PUT * OBJECTS_PER_FLUSH * dirty_count)


@attrs.define(eq=False, repr=False)
class FlushPacer:
    """A bucket of tokens for `--flush-objects-per-minute`. Times are in seconds, by the caller's clock.

    A sixth of the minute's objects may come at once. Only flushes by age wait for tokens; others spend them too, down
    to a debt of one bucketful, and a quarter of the rate is always left to flushes by age.
    """

    objects_per_minute: int
    objects_count: Counter = attrs.field(factory=Counter, init=False)
    _burst: float = attrs.field(init=False)
    _per_second: float = attrs.field(init=False)
    _tokens: float = attrs.field(init=False)
    _filled_at: float = attrs.field(default=0.0, init=False)
    _aged_at: float = attrs.field(default=-math.inf, init=False)  # the last flush by age

    def __attrs_post_init__(self) -> None:
        self._burst = self._tokens = max(OBJECTS_PER_FLUSH, self.objects_per_minute * BURST_FRACTION)
        self._per_second = (self.objects_per_minute - self._burst) / 60

    def register(self, metrics: Metrics) -> None:
        help = "Objects that flushes began to write."
        metrics.adopt_counter("kafscale_flush_objects_total", help, self.objects_count)

    def ready_at(self, now: float, promised_count: int) -> float:
        """Return when one more flush by age may begin; infinite while too many promised ones have not begun."""
        self._fill(now)
        wanted = (promised_count + 1) * OBJECTS_PER_FLUSH
        at = now + max(0.0, wanted - self._tokens) / self._per_second if wanted <= self._burst else math.inf
        if not promised_count:
            at = min(at, self._aged_at + OBJECTS_PER_FLUSH / (self._per_second * LEFT_TO_AGE_FRACTION))
        return max(now, at)

    def is_ready(self, now: float, promised_count: int) -> bool:
        return self.ready_at(now, promised_count) <= now + ROUNDING_SECONDS

    def began(self, now: float, *, by_age: bool) -> None:
        self._fill(now)
        self._tokens = max(-self._burst, self._tokens - OBJECTS_PER_FLUSH)
        self.objects_count.value += OBJECTS_PER_FLUSH
        if by_age:
            self._aged_at = now

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now


logger = logging.getLogger(__name__)

FAILED_FLUSH_PAUSE_SECONDS = 5.0  # the store has been retried for long before this; nothing is lost by waiting
PRESSURE_RELIEF_FRACTION = 0.5  # under pressure, flush the largest tails until this share of the used is under way
UPLOADING_MAX_FRACTION = 0.5  # of the pool, for uploads under way
PRESSED_SECONDS = 10.0  # since the pool ran short the last time: between two flushes of a load that fills it
SMALL_FRACTION = 1 / 2048  # of the pool: 256 KiB of 512 MiB, where an object's price is that of a second of its upload
CROWDED_DUE_MAX_COUNT = 16  # made due ahead while the log is crowded: it may not be so any more when their turn comes


@attrs.frozen
class _Wait:
    """The deadline of a waiting partition by trio's clock, and the log's small objects when the wait began."""

    until: float
    small_count: int


@attrs.define(eq=False, repr=False)
class _DuePartitions:
    """A queue of partitions, the one with the oldest batch first; under `segment` durability in order of arrival."""

    _entries: dict[Partition, tuple[int, int, Partition]] = attrs.field(factory=dict, init=False)
    _heap: list[tuple[int, int, Partition]] = attrs.field(factory=list, init=False)  # with some that were discarded
    _count: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._entries)

    def add(self, partition: Partition) -> None:
        if partition in self._entries:
            return
        self._count += 1
        batches = partition.tail.batches
        entry = (batches[0].sequence if batches else 0, self._count, partition)
        self._entries[partition] = entry
        heapq.heappush(self._heap, entry)

    def discard(self, partition: Partition) -> None:
        self._entries.pop(partition, None)

    def first(self) -> Partition | None:
        while self._heap and self._entries.get(self._heap[0][2]) is not self._heap[0]:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None


@attrs.define(eq=False, kw_only=True, repr=False)
class FlushReport:
    topics: frozenset[str] | None = None
    wanted: dict[Partition, int] = attrs.field(factory=dict, init=False)  # and up to which offset
    wanted_bytes: int = attrs.field(default=0, init=False)
    segments_count: int = attrs.field(default=0, init=False)
    flushed_bytes: int = attrs.field(default=0, init=False)  # more than was wanted, if more came before its flush began

    def want(self, partitions: Iterable[Partition]) -> None:
        self.wanted = {p: p.flushable_offset for p in partitions if self.topics is None or p.topic in self.topics}
        self.wanted_bytes = sum(partition.flushable_bytes for partition in self.wanted)

    def flushed(self, partition: Partition, size_bytes: int) -> None:
        if partition in self.wanted:
            self.segments_count += 1
            self.flushed_bytes += size_bytes


@attrs.define(eq=False, kw_only=True, repr=False)
class Flusher:
    """Owns a task for each partition being flushed. `store_places_count` is `--s3-concurrency`, 0 for no limit."""

    uploader: Uploader
    pool: ChunkPool
    journal: Journal
    interval_seconds: float
    pacer: FlushPacer | None
    store_places_count: int
    early_objects_count: int = 0
    tasks_max_count: float = attrs.field(init=False)
    duration_seconds: Histogram = attrs.field(factory=Histogram, init=False)
    failed_count: Counter = attrs.field(factory=Counter, init=False)
    _waiting: dict[Partition, _Wait] = attrs.field(factory=dict, init=False)  # in the order in which they are due
    _due: _DuePartitions = attrs.field(factory=_DuePartitions, init=False)
    _aged: set[Partition] = attrs.field(factory=set, init=False)  # of the due ones, those that only their age has made
    _flushing: dict[Partition, int] = attrs.field(factory=dict, init=False)  # and what each holds of the pool
    _uploading_bytes: int = attrs.field(default=0, init=False)  # the sum of these
    _last_progress: float = attrs.field(default=-math.inf, init=False)  # when a flush succeeded, or the first began
    _succeeded_at: float = attrs.field(default=-math.inf, init=False)  # a flush, the last time
    _under_pressure: bool = attrs.field(default=False, init=False)
    _relieved_at: float = attrs.field(default=-math.inf, init=False)
    leaves_to_spilling: bool = attrs.field(default=False, init=False)  # since the pool ran short the last time
    _reports: set[FlushReport] = attrs.field(factory=set, init=False)
    _wake: Signal = attrs.field(factory=Signal, init=False)
    _flush_ended: Signal = attrs.field(factory=Signal, init=False)

    def __attrs_post_init__(self) -> None:
        self.tasks_max_count = math.inf
        if self.journal.keeps_entries and self.store_places_count:
            # A flush is two PUTs, so half of the places are left to fetches, and to a log that is in the bucket.
            self.tasks_max_count = max(1, self.store_places_count // 4)
        self.pool.on_pressure.append(self.relieve)
        self.journal.on_growth.append(self.note_growth)

    def register(self, metrics: Metrics) -> None:
        help = "Time from the start of a flush to its commit."
        metrics.adopt_histogram("kafscale_flush_seconds", help, self.duration_seconds)
        metrics.adopt_counter(
            "kafscale_flush_failures_total", "Flushes that failed and are tried again.", self.failed_count
        )
        help = "Age of the oldest record that is not in the bucket yet."  # of what kafscale_tail_bytes counts
        metrics.gauge("kafscale_flush_age_seconds", help, self.oldest_seconds)
        if self.pacer is not None:
            self.pacer.register(metrics)

    def mark(self, partition: Partition) -> None:
        """Note that a partition has something to flush, or enough for a segment: `Partition.on_dirty`."""
        if partition in self._flushing:
            return
        if not self.journal.keeps_entries or partition.flushable_bytes >= partition.segment_bytes:
            self._make_due(partition)
        elif partition not in self._waiting and partition not in self._due:
            self._waiting[partition] = _Wait(trio.current_time() + self.interval_seconds, self.journal.small_count)
            if len(self._waiting) == 1:
                self._wake.set()

    def relieve(self) -> None:
        """Flush early, as the pool runs short: `ChunkPool.on_pressure`."""
        self._under_pressure = True
        self._relieved_at = trio.current_time()
        self._wake.set()

    def note_growth(self) -> None:
        """Note that the log has grown: `Journal.on_growth`."""
        if self._waiting and (self.journal.is_crowded or self._is_early(next(iter(self._waiting.values())))):
            self._wake.set()

    def forget(self, partition: Partition) -> None:
        """Forget a closed partition. A flush under way goes on, without effect."""
        self._waiting.pop(partition, None)
        self._due.discard(partition)
        self._aged.discard(partition)
        self._flush_ended.wake()  # a waiter must not wait for a flush that will not begin

    def is_flushing(self, partition: Partition) -> bool:
        """Tell whether an upload of the partition is under way, or failed a moment ago."""
        return partition in self._flushing

    def is_pressed(self) -> bool:
        return trio.current_time() < self._relieved_at + PRESSED_SECONDS

    def stalled_seconds(self) -> float:
        """Return how long no flush has succeeded while some were under way."""
        return trio.current_time() - self._last_progress if self._flushing else 0.0

    def has_succeeded_within(self, seconds: float) -> bool:
        return trio.current_time() - self._succeeded_at <= seconds

    def oldest_seconds(self) -> float:
        now = trio.current_time()
        dirty = (*self._waiting, *self._due, *self._flushing)
        return max((now - p.dirty_since for p in dirty if p.dirty_since is not None), default=0.0)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start flushes as they become due, until cancelled. Raises Fenced, StorageFailed."""
        with ungrouped():
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    self._wake.clear()
                    self._find_due()
                    while (partition := self._due.first()) is not None and self._begin(partition):
                        nursery.start_soon(self._flush, partition)
                    with trio.move_on_at(self._next_look_at()):
                        await self._wake.wait()

    async def flush_all(self, report: FlushReport | None = None) -> None:
        """Flush everything that may be flushed now, and wait until it is in the bucket. `run` must be running.

        `report` selects topics and is kept up to date. Retries while the store fails: the caller sets the limit.
        """
        report = report or FlushReport()
        report.want((*self._waiting, *self._due, *self._flushing))
        self._reports.add(report)
        try:
            for partition in report.wanted:
                if partition in self._waiting:
                    self._make_due(partition)
            for partition, end_offset in report.wanted.items():
                await self._wait_flushed(partition, end_offset)
        finally:
            self._reports.discard(report)

    async def flush(self, partition: Partition) -> None:
        """Flush what may be flushed of one partition now, and wait for it."""
        await self._wait_flushed(partition, partition.flushable_offset)

    async def settle(self, partition: Partition) -> None:
        """Wait until all of a partition is in the bucket, or it is closed. Never ends while producers go on."""
        while partition.flushed_offset < partition.next_offset and not partition.closed:
            if partition.flushable_offset < partition.next_offset:
                await _next_durable(partition)  # so that all of it is one segment
            else:
                await self.flush(partition)

    async def _wait_flushed(self, partition: Partition, end_offset: int) -> None:
        """Wait until offsets below `end_offset` are flushed; an earlier attempt's segment may end before it."""
        while partition.flushed_offset < min(end_offset, partition.flushable_offset) and not partition.closed:
            if partition in self._waiting:
                self._make_due(partition)
            await self._flush_ended.wait()

    async def wait_ended(self, topic_id: bytes) -> None:
        """Wait until no flush of a closed topic's partitions is under way."""
        while any(partition.topic_id == topic_id for partition in self._flushing):
            await self._flush_ended.wait()

    # ---- what is due ------------------------------------------------------------------------------------------

    def _make_due(self, partition: Partition) -> None:
        self._waiting.pop(partition, None)
        self._due.add(partition)
        self._wake.set()

    def _find_due(self) -> None:
        now = trio.current_time()
        crowded = self.journal.is_crowded
        while self._waiting:
            partition, wait = next(iter(self._waiting.items()))
            if self._is_early(wait) or (
                crowded
                and len(self._due) < CROWDED_DUE_MAX_COUNT
                and (wait.until <= now or _begins_in_a_sealed_file(partition))
            ):
                self._make_due(partition)
            elif wait.until <= now and (self.pacer is None or self.pacer.is_ready(now, len(self._aged))):
                self._aged.add(partition)
                self._make_due(partition)
            else:
                break
        if self._under_pressure:
            self._under_pressure = False
            for partition in self._largest():
                self._make_due(partition)

    def _is_early(self, wait: _Wait) -> bool:
        dirty_count = len(self._waiting) + len(self._due) + len(self._flushing)
        return self.journal.small_count - wait.small_count >= early_after(self.early_objects_count, dirty_count)

    def _next_look_at(self) -> float:
        if not self._waiting:
            return math.inf
        due_at = next(iter(self._waiting.values())).until
        return due_at if self.pacer is None else max(due_at, self.pacer.ready_at(trio.current_time(), len(self._aged)))

    def _begin(self, partition: Partition) -> bool:
        if len(self._flushing) >= self.tasks_max_count:
            return False
        held_bytes = partition.tail.chunks_bytes(partition.segment_bytes)
        if self._flushing and self._uploading_bytes + held_bytes > self.pool.size_bytes * UPLOADING_MAX_FRACTION:
            return False
        now = trio.current_time()
        if not self._flushing:
            self._last_progress = now
        if self.pacer is not None:
            self.pacer.began(now, by_age=partition in self._aged)
        self._aged.discard(partition)
        self._due.discard(partition)
        self._flushing[partition] = held_bytes
        self._uploading_bytes += held_bytes
        return True

    def _largest(self) -> Iterator[Partition]:
        """Choose the largest tails, until enough is under way or the rest is small and can be spilled."""
        least_bytes = self.pool.size_bytes * SMALL_FRACTION if self.journal.is_local else 0
        self.leaves_to_spilling = False
        wanted = self.pool.used_bytes * PRESSURE_RELIEF_FRACTION
        wanted -= sum(partition.held_bytes for partition in (*self._flushing, *self._due))
        if wanted <= 0:
            return
        sizes = [(size, partition) for partition in self._waiting if (size := partition.held_bytes) >= least_bytes]
        leaves_some = len(sizes) < len(self._waiting)
        for size, partition in sorted(sizes, key=itemgetter(0), reverse=True):
            wanted -= size
            yield partition
            if wanted <= 0:
                return
        self.leaves_to_spilling = leaves_some

    # ---- one flush --------------------------------------------------------------------------------------------

    async def _flush(self, partition: Partition) -> None:
        started = trio.current_time()
        failed = False
        try:
            plan = partition.prepare_flush()
            if plan is not None:
                await self.uploader.flush(partition, plan)
                self._last_progress = self._succeeded_at = trio.current_time()
                self.duration_seconds.observe(self._last_progress - started)
                for report in self._reports:
                    report.flushed(partition, plan.size_bytes)
        except (StoreError, DamagedObject) as exc:
            failed = True
            self.failed_count.value += 1
            logger.error("flush of %s failed and is tried again: %s", partition, exc)
            await trio.sleep(FAILED_FLUSH_PAUSE_SECONDS)
        finally:
            self._uploading_bytes -= self._flushing.pop(partition)
            if not partition.closed and partition.flushable_bytes:
                if failed:
                    self._make_due(partition)  # it has waited already
                else:
                    self.mark(partition)
            if self.pool.waiting_count:
                self.relieve()  # what has been freed was not enough
            if self._due:
                self._wake.set()  # there is room for another one
            self._flush_ended.wake()


async def _next_durable(partition: Partition) -> None:
    waiter = FetchWaiter(1)
    partition.waiters.add(waiter)
    try:
        await waiter.event.wait()
    finally:
        partition.waiters.discard(waiter)


def _begins_in_a_sealed_file(partition: Partition) -> bool:
    """Tell whether a flush frees some of the log: the file being written is kept anyway."""
    file = partition.tail.batches[0].file
    return file is not None and file.sealed


PATIENCE_SECONDS = 0.25  # flushes that pressure has begun may take this long to relieve it
# A producer waits, and no flush has succeeded for so long. One that merely waits, since producers are faster than the
# store, waits on: what is spilled must be read back, and flushes would fall behind for good, until the log is full.
STALLED_BEFORE_PRODUCER_SECONDS = 0.5
STALLED_SECONDS = 2.0  # no flush has succeeded for so long: spill before a producer has to wait
SPILL_DOWN_TO_FRACTION = 0.5  # of the pool
SPILLED_AT_ONCE_COUNT = 1_000  # batches; then others may run, as it takes a microsecond for each


@attrs.define(eq=False, kw_only=True, repr=False)
class Spiller:
    """Frees the chunks of batches that the local log also has, when memory runs short and flushes are too slow.

    So an outage of the bucket costs disk, not memory. While the store keeps up nothing is spilled, except for small
    tails: reading back costs more than waiting for an upload.
    """

    pool: ChunkPool
    flusher: Flusher
    partitions: Mapping[PartitionId, Partition]
    spilled_bytes: Counter = attrs.field(factory=Counter, init=False)
    _pressed: Signal = attrs.field(factory=Signal, init=False)

    def __attrs_post_init__(self) -> None:
        self.pool.on_pressure.append(self.wake)

    def register(self, metrics: Metrics) -> None:
        help = "Bytes of record batches left to the WAL because memory was short."
        metrics.adopt_counter("kafscale_spilled_bytes_total", help, self.spilled_bytes)

    def wake(self) -> None:
        self._pressed.set()

    async def run(self) -> None:
        while True:
            self._pressed.clear()
            if not self.pool.under_pressure:
                await self._pressed.wait()
            await trio.sleep(PATIENCE_SECONDS)
            if self._is_needed():
                await self._spill()

    def _is_needed(self) -> bool:
        patience_seconds = STALLED_BEFORE_PRODUCER_SECONDS if self.pool.waiting_count else STALLED_SECONDS
        return (self.pool.under_pressure or self.pool.waiting_count > 0) and (
            self.flusher.leaves_to_spilling or self.flusher.stalled_seconds() >= patience_seconds
        )

    async def _spill(self) -> None:
        """Spill the largest tails first and those being flushed last, as an upload keeps its chunks."""
        holders = [partition for partition in self.partitions.values() if partition.held_bytes]
        holders.sort(key=lambda partition: (self.flusher.is_flushing(partition), -partition.held_bytes))
        for partition in holders:
            while self._wants_more():
                spilled_bytes = partition.spill(SPILLED_AT_ONCE_COUNT)
                self.spilled_bytes.value += spilled_bytes
                await trio.lowlevel.checkpoint()
                if not spilled_bytes:
                    break

    def _wants_more(self) -> bool:
        return self.pool.waiting_count > 0 or self.pool.used_bytes > self.pool.size_bytes * SPILL_DOWN_TO_FRACTION
