"""One partition's state: offsets, memory tail, producers, waiting fetches. All changes are synchronous.

    log_start_offset ≤ ... segments in the bucket ... ≤ flushed_offset ≤ ... tail ... ≤ high_watermark ≤ next_offset

The path of a batch: `place_nowait` copies it into a chunk (large frames were received into one), `append` assigns
offsets and hands it to the journal, `on_durable` moves the high watermark and wakes fetches, and a flush moves it into
a segment: `prepare_flush`, an upload that holds no lock, `commit_flush`. If the journal keeps no entries, the commit
of the flush acknowledges the batch.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Literal

import attrs
import trio

from kafscale.concurrency.signals import Signal
from kafscale.errors import KafkaError, StorageFailed
from kafscale.formats.log_end import LogEnd
from kafscale.formats.manifest import Manifest, PartitionId, Segment
from kafscale.formats.resolution import epoch_at
from kafscale.formats.segment import EpochStart, Footer
from kafscale.formats.transactions import AbortedTransaction, OpenTransaction, Producer
from kafscale.formats.wal_entries import WalEntry
from kafscale.formats.wal_runs import is_superseded
from kafscale.log.partition.chunks import ChunkPool, Lease
from kafscale.log.partition.log_config import LogConfig
from kafscale.log.partition.producers import ProducerBudget, ProducerStates
from kafscale.log.partition.tail import ALONE, Tail, TailBatch, without_holes
from kafscale.log.partition.transactions import NEVER, Transactions
from kafscale.log.wal.journal import EntryJournal, Round
from kafscale.metrics import Counter
from kafscale.store.paths import EPOCH_UNKNOWN, SegmentKey, partition_prefix
from kafscale.wire.batch_header import TRANSACTIONAL, BatchHeader, set_base_offset
from kafscale.wire.control_records import EndMarker
from kafscale.wire.error_codes import NONE, UNKNOWN_TOPIC_OR_PARTITION


@attrs.define(eq=False, repr=False)
class Traffic:
    bytes_in: Counter = attrs.field(factory=Counter)
    records_in: Counter = attrs.field(factory=Counter)
    bytes_out: Counter = attrs.field(factory=Counter)
    records_out: Counter = attrs.field(factory=Counter)


logger = logging.getLogger(__name__)

CHUNK_GROWTH_MAX_BYTES = 1 << 20  # a busy partition leases this much at a time; an idle one holds one chunk


@attrs.define(eq=False, repr=False)
class FetchWaiter:
    """A fetch that waits until `missing_bytes` more have become readable in any of its partitions.

    A `committed_only` one looks again whenever the last stable offset of a partition with open transactions has moved:
    how much that makes readable is not counted.
    """

    missing_bytes: int
    committed_only: bool = False
    event: Signal = attrs.field(factory=Signal)

    def became_readable(self, size_bytes: int) -> None:
        self.missing_bytes -= size_bytes
        if self.missing_bytes <= 0:
            self.event.set()


@attrs.frozen
class EpochEnd:
    epoch: int
    end_offset: int


@attrs.define(eq=False, repr=False)
class Placed:
    """A batch's bytes in the pool. Its holder owes `lease` one release. `start` is as in TailBatch.

    Not frozen, which doubles the cost: one is made for each batch.
    """

    data: memoryview
    lease: Lease
    start: int


@attrs.frozen(eq=False, repr=False)
class FlushPlan:
    """The input of one flush: batches before `end_offset` (exclusive), and their footer's content."""

    batches: Sequence[TailBatch]
    base_offset: int
    end_offset: int
    size_bytes: int
    producers: Sequence[Producer]
    producers_from: int
    epochs: Sequence[EpochStart]
    leader_epoch: int
    aborted: Sequence[AbortedTransaction]
    open_transactions: Sequence[OpenTransaction]


@attrs.define(eq=False, kw_only=True, repr=False)
class Partition:
    """One partition, led here with `leader_epoch`.

    `on_dirty` is called when there is something to flush, and when that has grown to a segment's size; after a flush
    the flusher looks at `flushable_bytes` itself. `on_flushed` is called when the manifest has a new segment.
    """

    topic: str
    topic_id: bytes
    index: int
    namespace: str
    leader_epoch: int
    config: LogConfig
    segment_bytes: int
    pool: ChunkPool
    journal: EntryJournal
    manifest: Manifest = attrs.field(factory=Manifest)
    on_dirty: Callable[[Partition], None]
    on_flushed: Callable[[Partition], None] = lambda partition: None
    producer_budget: ProducerBudget = attrs.field(factory=ProducerBudget)
    traffic: Traffic = attrs.field(factory=Traffic)
    clock: Callable[[], float] = trio.current_time

    log_start_offset: int = attrs.field(default=0, init=False)
    next_offset: int = attrs.field(default=0, init=False)
    high_watermark: int = attrs.field(default=0, init=False)
    flushed_offset: int = attrs.field(default=0, init=False)
    acknowledges_flushes: bool = attrs.field(init=False)  # and nothing before: the journal keeps no entries
    flushable_bytes: int = attrs.field(default=0, init=False)  # of the tail, what a flush may take now
    tail: Tail = attrs.field(factory=Tail, init=False)
    producers: ProducerStates = attrs.field(init=False)
    transactions: Transactions = attrs.field(factory=Transactions, init=False)
    epochs: list[EpochStart] = attrs.field(factory=list, init=False)
    latest_round: Round | None = attrs.field(default=None, init=False)
    waiters: set[FetchWaiter] = attrs.field(factory=set, init=False)
    dirty_since: float | None = attrs.field(default=None, init=False)
    recent_bytes: int = attrs.field(default=0, init=False)  # appended and fetched; who measures it begins anew
    opened_at: float | None = attrs.field(default=None, init=False)
    closed: bool = attrs.field(default=False, init=False)
    closed_error: int = attrs.field(default=NONE, init=False)  # of requests that hold it after it was closed
    is_leaving: bool = attrs.field(default=False, init=False)  # it is to be closed: its segments are not rewritten
    encoded_end: bytes = attrs.field(default=b"", init=False)  # LogEnd as of the last segment, for checkpoints
    lost_before: int = attrs.field(default=0, init=False)  # below it, offsets without a segment may be acknowledged
    lost_offset: int = attrs.field(default=0, init=False)  # below it, offsets may have been lost with files of the WAL
    quarantined: dict[SegmentKey, int] = attrs.field(factory=dict, init=False)  # and the last offset of each
    missing: dict[SegmentKey, int] = attrs.field(factory=dict, init=False)  # at the start, alike
    late: set[SegmentKey] = attrs.field(factory=set, init=False)  # objects of superseded brokers, which are not read
    _chunk: Lease | None = attrs.field(default=None, init=False)
    _chunk_used_bytes: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.producers = ProducerStates(self.producer_budget, self.transactions)
        self.acknowledges_flushes = not self.journal.keeps_entries

    @property
    def partition_id(self) -> PartitionId:
        return self.topic_id, self.index

    @property
    def last_stable_offset(self) -> int:
        """The end of what `read_committed` may read (LSO): all transactions up to here are durably decided.

        A deletion may pass it, as in Kafka; then it is the log start.
        """
        unstable, high_watermark = self.transactions.first_unstable_offset, self.high_watermark
        return (
            high_watermark if high_watermark <= unstable else min(high_watermark, max(unstable, self.log_start_offset))
        )

    @property
    def flushable_offset(self) -> int:
        """The end of what a flush may take: durable batches, or all if only a flush makes them durable."""
        return self.next_offset if self.acknowledges_flushes else self.high_watermark

    @property
    def held_bytes(self) -> int:
        return max(self.tail.pooled_bytes, 0 if self._chunk is None else len(self._chunk.view))

    @property
    def size_bytes(self) -> int:
        return self.manifest.size_bytes + self.tail.size_bytes

    @property
    def objects_prefix(self) -> str:
        return partition_prefix(self.topic, self.topic_id, self.index, namespace=self.namespace)

    def segment_key(
        self, base_offset: int, *, epoch: int = EPOCH_UNKNOWN, generation: int = 0, version: Literal[1, 2] = 2
    ) -> SegmentKey:
        return SegmentKey(
            namespace=self.namespace,
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.index,
            base_offset=base_offset,
            epoch=epoch,
            generation=generation,
            version=version,
        )

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    # ---- produce ----------------------------------------------------------------------------------------------

    def place_nowait(self, data: memoryview) -> Placed | None:
        """Copy a batch into this partition's chunk; None if the pool is exhausted."""
        size = len(data)
        chunk, used = self._chunk, self._chunk_used_bytes
        if chunk is None or used + size > len(view := chunk.view):
            chunk = self._lease_chunk(size)
            if chunk is None:
                return None
            used, view = 0, chunk.view
        end = used + size
        place = view[used:end]
        place[:] = data
        self._chunk_used_bytes = end
        chunk.retain()
        return Placed(place, chunk, used)

    def _lease_chunk(self, size: int) -> Lease | None:
        previous = 0 if self._chunk is None else len(self._chunk.view)
        wanted = max(size, min(2 * previous, CHUNK_GROWTH_MAX_BYTES), self.pool.chunk_bytes)
        chunk = self.pool.acquire_nowait(wanted) or self.pool.acquire_nowait(max(size, self.pool.chunk_bytes))
        if chunk is not None:
            self._leave_chunk()
            self._chunk = chunk
        return chunk

    def _leave_chunk(self) -> None:
        if self._chunk is not None:
            self._chunk.release()
            self._chunk = None

    def give_back(self, placed: Placed) -> None:
        """Release a batch that is not appended, and the chunk if no flush will."""
        placed.lease.release()
        if self.closed or not self.tail.batches:
            self._leave_chunk()

    def append(
        self, header: BatchHeader, placed: Placed, now_ms: int, *, min_timestamp_ms: int | None = None
    ) -> TailBatch:
        """Assign the next offsets to a validated batch, in place, and hand it to the journal. Takes over `placed`.

        `min_timestamp_ms` is the earliest of its records' times, by default as the header tells. Raises StorageFailed
        if the journal takes nothing any more; then nothing has changed, and the caller still owns `placed`.
        """
        base_offset = self.next_offset
        data = placed.data
        set_base_offset(data, base_offset, self.leader_epoch)
        batch = TailBatch(
            topic_id=self.topic_id,
            partition=self.index,
            leader_epoch=self.leader_epoch,
            base_offset=base_offset,
            data=data,
            owner=self,
            last_offset=base_offset + header.last_offset_delta,
            max_timestamp_ms=header.max_timestamp_ms,
            min_timestamp_ms=header.min_timestamp_ms if min_timestamp_ms is None else min_timestamp_ms,
            size_bytes=len(data),
            lease=placed.lease,
            start=placed.start,
            is_transactional=bool(header.attributes & TRANSACTIONAL),
        )
        self.latest_round = self.journal.append(batch)
        self.next_offset = batch.last_offset + 1
        if header.producer_id >= 0:
            durable_before = self.high_watermark
            if header.attributes & TRANSACTIONAL:
                self.producers.take(header, data, base_offset, now_ms, durable_before=durable_before)
            else:
                self.producers.record(header, base_offset, now_ms, durable_before=durable_before)
        if not self.epochs or self.epochs[-1].epoch != self.leader_epoch:
            self.epochs.append(EpochStart(self.leader_epoch, base_offset))
        self.recent_bytes += batch.size_bytes
        self.traffic.bytes_in.value += batch.size_bytes
        self.traffic.records_in.value += header.record_count
        self.tail.append(batch)
        if self.acknowledges_flushes:
            self._became_flushable(batch.size_bytes)
        return batch

    def replay(self, entry: WalEntry, header: BatchHeader, now_ms: int, *, placed: Placed | None = None) -> TailBatch:
        """Take back a batch that the journal had made durable before a restart.

        Its bytes stay in the journal unless they are `placed`, which is taken over. Its producer counts as heard of
        now: the record's timestamps are the producer's own, and may be years old.
        """
        assert entry.base_offset == self.next_offset, (entry.base_offset, self.next_offset)
        if placed is None and self.tail.pooled_bytes:
            self.spill()  # in a tail, those that memory does not have come before those that it has
        if header.producer_id >= 0:
            offset = entry.base_offset
            self.producers.take(header, memoryview(entry.data), offset, now_ms, durable_before=offset)
        if not self.epochs or self.epochs[-1].epoch != entry.leader_epoch:
            self.epochs.append(EpochStart(entry.leader_epoch, entry.base_offset))
        batch = TailBatch(
            topic_id=self.topic_id,
            partition=self.index,
            leader_epoch=entry.leader_epoch,
            base_offset=entry.base_offset,
            data=b"" if placed is None else placed.data,
            owner=self,
            last_offset=entry.base_offset + header.last_offset_delta,
            max_timestamp_ms=header.max_timestamp_ms,
            min_timestamp_ms=header.min_timestamp_ms,
            size_bytes=len(entry.data),
            lease=None if placed is None else placed.lease,
            start=ALONE if placed is None else placed.start,
            is_transactional=bool(header.attributes & TRANSACTIONAL),
        )
        batch.file, batch.position, batch.sequence = entry.file, entry.position, entry.sequence
        self.next_offset = self.high_watermark = batch.last_offset + 1
        self.transactions.became_durable(self.high_watermark)
        self.tail.append(batch)
        self._became_flushable(batch.size_bytes)
        return batch

    def on_durable(self, end_offset: int, size_bytes: int) -> None:
        """Let consumers see the batches before `end_offset`, which have `size_bytes` more than before."""
        self._move_high_watermark(end_offset, size_bytes)
        self._became_flushable(size_bytes)

    def wants_marker(self, marker: EndMarker) -> bool:
        """Tell whether a marker would change anything. Raises as `Transactions.check_marker`, or if closed."""
        if self.closed:
            raise KafkaError(self.closed_error)
        return self.transactions.check_marker(marker, self.producers.producers.get(marker.producer_id))

    def _move_high_watermark(self, end_offset: int, size_bytes: int) -> None:
        assert end_offset > self.high_watermark, (end_offset, self.high_watermark)
        if self.transactions.first_unstable_offset != NEVER:
            self._move_stable_offset(end_offset, size_bytes)
            return
        self.high_watermark = end_offset
        for waiter in self.waiters:
            waiter.became_readable(size_bytes)

    def _move_stable_offset(self, end_offset: int, size_bytes: int) -> None:
        before = self.last_stable_offset if self.waiters else 0
        self.high_watermark = end_offset
        self.transactions.became_durable(end_offset)
        if not self.waiters:
            return
        has_moved = self.last_stable_offset > before
        for waiter in self.waiters:
            if not waiter.committed_only:
                waiter.became_readable(size_bytes)
            elif has_moved:
                waiter.event.set()

    def _became_flushable(self, size_bytes: int) -> None:
        before = self.flushable_bytes
        self.flushable_bytes = after = before + size_bytes
        if before == 0:
            self.dirty_since = self.clock()
            self.on_dirty(self)
        elif before < self.segment_bytes <= after:
            self.on_dirty(self)

    # ---- fetch ------------------------------------------------------------------------------------------------

    def wake_waiters(self) -> None:
        for waiter in self.waiters:
            waiter.event.set()

    def select_tail(self, offset: int, max_bytes: int, end_offset: int | None = None) -> Sequence[TailBatch]:
        """Return durable batches from the one that holds `offset`; none if that is not in the tail.

        `end_offset` bounds the read (exclusive) below the high watermark.
        """
        if offset < self.flushed_offset:
            return ()
        return self.tail.select(offset, self.high_watermark if end_offset is None else end_offset, max_bytes)

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch of the record at `offset`; the current one past the end."""
        if offset >= self.next_offset:
            return self.leader_epoch
        epochs = [start.epoch for start in self.epochs if start.start_offset <= offset]
        return epochs[-1] if epochs else self.leader_epoch

    def is_superseded_by(self, entry: WalEntry) -> bool:
        """Tell whether the bucket has, at this entry's offset, a late record of an earlier epoch."""
        if self.tail.batches or entry.base_offset >= self.next_offset:
            return False
        return 0 <= epoch_at(self.epochs, entry.base_offset) < entry.leader_epoch

    def has_superseded(self, entry: WalEntry) -> bool:
        """Tell whether a broker of a later epoch has written this entry's offsets, or ended the log before them."""
        return is_superseded(EpochStart(entry.leader_epoch, entry.base_offset), self.epochs, self.next_offset)

    def epoch_end(self, epoch: int) -> EpochEnd | None:
        """Return the largest epoch of this log that is not above `epoch`, and its end (KIP-101, KIP-279).

        None for a future epoch. For one before all known epochs, as in Kafka, that epoch and the begin of the log.
        """
        if epoch > self.leader_epoch:
            return None
        if epoch == self.leader_epoch:
            return EpochEnd(epoch, self.high_watermark)
        known = [start.epoch for start in self.epochs if start.epoch <= epoch]
        above = [start.start_offset for start in self.epochs if start.epoch > epoch]
        return EpochEnd(known[-1] if known else epoch, above[0] if above else self.high_watermark)

    # ---- flush ------------------------------------------------------------------------------------------------

    def prepare_flush(self) -> FlushPlan | None:
        batches = self.tail.select(self.flushed_offset, self.flushable_offset, self.segment_bytes)
        if not batches:
            return None
        if self.lost_offset > batches[0].base_offset:
            batches = without_holes(batches)
        self.journal.flush_began(self, self.next_offset)
        return self._plan(batches)

    def _plan(self, batches: Sequence[TailBatch]) -> FlushPlan:
        end_offset = batches[-1].last_offset + 1
        base_offset = batches[0].base_offset
        heard_since_ms = time.time_ns() // 1_000_000 - self.config.producer_id_expiration_ms
        kept = self.producers.for_footer(base_offset, end_offset, heard_since_ms=heard_since_ms)
        return FlushPlan(
            batches=batches,
            base_offset=base_offset,
            end_offset=end_offset,
            size_bytes=sum(batch.size_bytes for batch in batches),
            producers=kept.producers,
            producers_from=kept.producers_from,
            epochs=[start for start in self.epochs if start.start_offset < end_offset],
            leader_epoch=self.leader_epoch,
            aborted=self.transactions.aborted_by_markers(base_offset, end_offset),
            open_transactions=self.transactions.open_at(end_offset),
        )

    def plan_until(self, last_offset: int) -> FlushPlan | None:
        """Plan the batches that a segment in the bucket has already; None if it ends inside a batch."""
        batches = self.tail.batches[: self.tail.find(last_offset) + 1]
        return self._plan(batches) if batches and batches[-1].last_offset == last_offset else None

    def commit_flush(self, plan: FlushPlan, segment: Segment, footer: Footer) -> None:
        """Drop the plan's batches from the tail, as `segment` is in the bucket, and acknowledge what waits for it.

        `footer` may be that of an earlier attempt, with other producers than the plan.
        """
        assert not self.closed
        assert plan.base_offset == self.tail.batches[0].base_offset, (plan.base_offset, self.flushed_offset)
        self.manifest.add(segment)
        self.producers.kept((producer.producer_id for producer in footer.producers), segment.base_offset)
        self.encoded_end = LogEnd.of(footer).encode() if footer.has_all_producers else b""
        self.flushed_offset = plan.end_offset
        self.flushable_bytes -= plan.size_bytes
        self.dirty_since = self.clock() if self.flushable_bytes else None
        for batch in self.tail.drop_first(len(plan.batches)):
            self.release(batch)
        if not self.tail.batches:
            self._leave_chunk()
        if self.acknowledges_flushes:
            self._move_high_watermark(plan.end_offset, plan.size_bytes)
        self.transactions.flushed(plan.end_offset)
        self.journal.flush_committed(self, plan.end_offset)
        self.on_flushed(self)

    def restore(self, segments: Sequence[Segment], end: LogEnd | None, *, lost_before: int = 0) -> None:
        """Begin with what the bucket holds; `end` is the state after the last segment.

        Offsets below `lost_before` may be in an unreadable segment: the journal's are replayed, `skip_missing` skips
        others.
        """
        self.manifest = Manifest(list(segments))
        self.lost_before = lost_before
        self.transactions.restore(() if end is None else end.open_transactions)
        if end is None:
            self.producers.restore((), {})
            self.epochs, self.next_offset, self.encoded_end = [], 0, b""
        else:
            last_base_offset = max(segments, key=attrgetter("last_offset")).base_offset if segments else 0
            kept_in = {producer.producer_id: last_base_offset for producer in end.producers} | dict(end.kept_in)
            self.producers.restore(end.producers, kept_in)
            self.epochs = list(end.epochs)
            self.next_offset = end.last_offset + 1
            self.encoded_end = end.encode()
        self.flushed_offset = self.high_watermark = self.next_offset

    def skip_to(self, offset: int) -> None:
        """Go on at `offset`: everything below it is deleted or lost. Offsets never go back."""
        assert offset <= max(self.log_start_offset, self.lost_before)
        assert not self.tail.batches
        self.next_offset = self.flushed_offset = self.high_watermark = max(offset, self.next_offset)

    def skip_lost(self, offset: int) -> None:
        """Go on at `offset`: missing offsets below it were lost with files of the local log. The tail stays."""
        if not self.tail.batches:
            self.flushed_offset = offset
        self.next_offset = self.high_watermark = offset

    def skip_missing(self) -> None:
        """Go on, after the replay, behind all offsets that may have been acknowledged."""
        if not self.tail.batches:
            self.skip_to(max(self.log_start_offset, self.lost_before))
        if self.lost_offset > self.next_offset:
            self.skip_lost(self.lost_offset)

    def release(self, batch: TailBatch) -> None:
        if batch.lease is not None:
            batch.lease.release()
        if batch.file is not None:
            self.journal.release(batch.file)

    def spill(self, max_count: int = sys.maxsize) -> int:
        """Give up the chunks of at most `max_count` batches that the local log has. Return the freed bytes."""
        self._leave_chunk()
        return self.tail.spill_before(self.high_watermark, max_count)

    # ---- deletion ---------------------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> None:
        """Move the log start; readers don't see what lies below any more (KIP-107)."""
        self.log_start_offset = max(self.log_start_offset, before_offset)
        self.wake_waiters()

    def set_aside(self, late: Iterable[SegmentKey]) -> None:
        for key in late:
            if key not in self.late:
                self.late.add(key)
                logger.error(
                    "%s is not read: its broker wrote it after another one had taken over, which has written other "
                    "records at its offsets. It stays in the bucket; `kafscale inspect --batches` shows what is in it",
                    key.key,
                )

    def quarantine(self, segment: Segment) -> bool:
        """Stop reading a damaged segment; False if it is not read anyway."""
        if not self.manifest.remove(segment):
            return False
        self.quarantined[segment.key] = segment.last_offset
        return True

    def drop_deleted(self) -> Sequence[Segment]:
        """Take the segments below the log start out of the manifest, except for the last of all.

        Those whose footers hold producers that no later footer has stay, for some flushes.
        """
        kept_from = self.producers.kept_from
        return self.manifest.take_below(min(self.log_start_offset, sys.maxsize if kept_from is None else kept_from))

    def replace_segments(self, sources: Sequence[Segment], merged: Segment) -> Sequence[Segment]:
        """Read `merged` instead of `sources`, which adjoin in order of offset. Return the replaced segments.

        A source that retention has taken meanwhile stays below the log start. If a source was rewritten, nothing
        happens.
        """
        left = [segment for segment in sources if self.manifest.refers_to(segment.key)]
        taken = sources[: len(sources) - len(left)]
        if any(
            self.manifest.refers_to(segment.key) or segment.last_offset >= self.log_start_offset for segment in taken
        ):
            return []
        if not left:
            return [merged]
        self.manifest.replace(left, merged)
        return left

    def close(self, error: int = UNKNOWN_TOPIC_OR_PARTITION) -> None:
        """Release the memory: the topic was deleted or the partition handed over, as `error` says.

        Batches that the journal has not written yet keep their chunks until `became_durable`. The transactions stay,
        for reads under way.
        """
        self.closed = self.is_leaving = True
        self.closed_error = error
        self.producers.clear()
        self.flushable_bytes = 0
        self.dirty_since = None
        for batch in self.tail.drop_first(self.tail.find(self.flushable_offset)):
            self.release(batch)
        self._leave_chunk()
        self.journal.forget(self, StorageFailed(f"partition {self} was closed"))
        self.wake_waiters()
