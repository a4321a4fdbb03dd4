"""Compact partitions whose topic has `compact` in `cleanup.policy`, by Kafka's rules: keep each key's latest record.

The `Compactor` compacts the dirtiest partitions that are worth it, one at a time. docs/discussion/compaction.md says
which, how, and why an interruption leaves a right state.

    log start ... clean ... | first dirty offset ... cleanable ... | end offset ... not cleanable yet ... | tail
"""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from operator import attrgetter
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary

import attrs
import trio
from crc32c import crc32c

from kafscale.buffers import Buffer, slices_of
from kafscale.errors import DamagedObject, KafkaError, StoreError
from kafscale.formats.body import BatchSplitter, read_pieces
from kafscale.formats.footer_reading import read_footer
from kafscale.formats.manifest import Manifest, Segment
from kafscale.formats.segment import HEADER, Footer, Identity, build_footer
from kafscale.log.partition.log_config import INT64_MAX
from kafscale.log.partition.partition import Partition
from kafscale.log.read.footers import Footers
from kafscale.log.rewrite.compaction_filter import (
    CompactionFilter,
    CompactionRules,
    KeyPass,
    OffsetMap,
    OutcomePass,
    RewritePass,
    Unreadable,
    capacity_of,
)
from kafscale.log.rewrite.merger import producers_of
from kafscale.log.rewrite.rewriting import Rewriter
from kafscale.metrics import Counter, Metrics
from kafscale.wire.batch_header import parse_header

_base_offset = attrgetter("base_offset")


@attrs.frozen(kw_only=True)
class CleanablePart:
    """The part of a partition that can be compacted now. The end is exclusive; sizes are in bytes."""

    partition: Partition
    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)

    @property
    def is_worth_it(self) -> bool:
        wanted = self.dirty_ratio > self.partition.config.min_cleanable_dirty_ratio
        return self.dirty_bytes > 0 and (wanted or self.is_overdue)


def first_dirty_offset(partition: Partition) -> int:
    """Return how far the partition is compacted, as its segments tell."""
    clean_to = max((segment.first_dirty_offset for segment in partition.manifest.segments), default=0)
    return max(clean_to, partition.log_start_offset)


async def find_cleanable(partition: Partition, footers: Footers, now_ms: int) -> CleanablePart:
    """Find the part. Unknown timestamps are read: raises NotFound, DamagedObject, StoreError."""
    first_dirty = first_dirty_offset(partition)
    segments = list(partition.manifest.segments)
    dirty = [segment for segment in segments if segment.last_offset >= first_dirty]
    end_offset = max((segment.last_offset + 1 for segment in segments), default=0)
    is_overdue = False
    if dirty and (young := await _first_young(partition, dirty, footers, now_ms)) is not None:
        end_offset = young.base_offset
    end_offset = min(end_offset, partition.last_stable_offset)
    if end_offset <= first_dirty:
        dirty = []
    if dirty and partition.config.max_compaction_lag_ms < INT64_MAX:
        is_overdue = await _is_overdue(partition, dirty[0], footers, now_ms)
    return CleanablePart(
        partition=partition,
        first_dirty_offset=first_dirty,
        end_offset=end_offset,
        clean_bytes=sum(segment.size_bytes for segment in segments if segment.last_offset < first_dirty),
        dirty_bytes=sum(segment.size_bytes for segment in dirty if segment.base_offset < end_offset),
        is_overdue=is_overdue,
    )


async def _first_young(partition: Partition, dirty: Iterable[Segment], footers: Footers, now_ms: int) -> Segment | None:
    lag_ms = partition.config.min_compaction_lag_ms
    if not lag_ms:
        return None
    for segment in dirty:
        if await footers.max_timestamp_ms(partition.manifest, segment) > now_ms - lag_ms:
            return segment
    return None


async def _is_overdue(partition: Partition, segment: Segment, footers: Footers, now_ms: int) -> bool:
    """Judge by the first dirty batches, as Kafka does."""
    footer = await footers.get_with_timestamps(segment)
    row = footer.row_of(max(first_dirty_offset(partition), segment.base_offset))
    first_ms = footer.index.max_timestamps_ms[row]
    return 0 < first_ms < now_ms - partition.config.max_compaction_lag_ms


@attrs.frozen
class Stretch:
    """The batches of a segment that begin from `start_offset` to `stop_offset` (exclusive)."""

    segment: Segment
    start_offset: int
    stop_offset: int


def stretches(segments: Sequence[Segment], start_offset: int) -> Iterator[Stretch]:
    """Iterate over what a reader would read of these segments, which may overlap after a crash."""
    manifest = Manifest(list(segments))
    offset = start_offset
    while (segment := manifest.find(offset)) is not None:
        offset = max(offset, segment.base_offset)
        following = bisect_right(segments, offset, key=_base_offset)
        stop_offset = segment.last_offset + 1
        if following < len(segments):
            stop_offset = min(stop_offset, segments[following].base_offset)
        yield Stretch(segment, offset, stop_offset)
        offset = stop_offset


def groups(segments: Sequence[Segment], target_bytes: int) -> Iterator[Sequence[Segment]]:
    """Yield neighbours that together fit into the target size, or a larger one; overlapping ones together.

    Segments on both sides of a gap are never joined: the new segment would cover the offsets of a quarantined one.
    """
    group: list[Segment] = []
    size_bytes, last_offset = 0, -1
    for segment in segments:
        is_full = segment.base_offset > last_offset and size_bytes + segment.size_bytes > target_bytes
        if group and (is_full or segment.base_offset > last_offset + 1):
            yield group
            group, size_bytes = [], 0
        group.append(segment)
        size_bytes += segment.size_bytes
        last_offset = max(last_offset, segment.last_offset)
    if group:
        yield group


FAILED_PAUSE_SECONDS = 300.0  # the store client has retried already, and no request waits for it
PASSED_BY_COUNT = 1_000  # partitions with nothing to compact, between two of trio's checkpoints
GENERATIONS_LEFT_OUT_COUNT = 2  # above those listed: an upload of the process before may still arrive, and a merge's
SLICE_BYTES = 64 << 10  # what is done without a pause in which others have the interpreter: 1 to 5 ms
THREAD_BYTES = 16 << 10  # below this the work is not worth a thread hop

logger = logging.getLogger(__name__)

T = TypeVar("T")


class BatchPass(Protocol):
    """Takes batch by batch, in a thread; `is_over` when the rest does not matter."""

    @property
    def is_over(self) -> bool: ...

    def take(self, batch: memoryview) -> None: ...


@attrs.define(eq=False, kw_only=True, repr=False)
class CompactionRound:
    """One compaction of a partition. No earlier attempt has used `generation` or a higher one."""

    part: CleanablePart
    compactor: Compactor
    generation: int
    unreadable: Unreadable = attrs.field(factory=Unreadable, init=False)  # batches of the dirty part

    @property
    def partition(self) -> Partition:
        return self.part.partition

    async def run(self) -> bool:
        """Compact; False if it could not be finished. Raises DamagedObject, StoreError, Fenced."""
        segments = [
            segment for segment in self.partition.manifest.segments if segment.base_offset < self.part.end_offset
        ]
        compaction = await self._learn_keys(segments)
        end_offset = compaction.rules.end_offset
        if end_offset <= self.part.first_dirty_offset:
            return False
        concerned = list(
            groups([segment for segment in segments if segment.base_offset < end_offset], self.compactor.target_bytes)
        )
        for group in concerned:
            first_dirty_offset = end_offset if group is concerned[-1] else self.part.first_dirty_offset
            if not await self._rewrite(group, compaction, first_dirty_offset):
                return False
        self.compactor.removed_records.value += compaction.removed_records_count
        return True

    # ---- first time through -------------------------------------------------------------------------------------

    async def _learn_keys(self, segments: Sequence[Segment]) -> CompactionFilter:
        begun_ms = self.compactor.now_ms()
        start_offset, end_offset = self.part.first_dirty_offset, self.part.end_offset
        dirty = [segment for segment in segments if segment.last_offset >= start_offset]
        latest = OffsetMap(min(capacity_of(self.compactor.map_bytes), end_offset - start_offset))
        keys = KeyPass(latest=latest, start_offset=start_offset, end_offset=end_offset)
        await self._read(dirty, start_offset, keys)
        if keys.needs_outcomes:
            ended = OutcomePass()
            await self._read(dirty, start_offset, ended)
            if (open_offset := ended.first_open_offset) is not None:
                end_offset = min(end_offset, open_offset)
            aborted = ended.aborted
            keys = KeyPass(latest=latest, start_offset=start_offset, end_offset=end_offset, aborted=aborted)
            await self._read(dirty, start_offset, keys)
        self.unreadable = keys.unreadable
        producers = self.partition.producers.producers.values()
        rules = CompactionRules(
            end_offset=keys.end_offset,
            now_ms=begun_ms,
            delete_retention_ms=self.partition.config.delete_retention_ms,
            producers_last_offsets={producer.batches[-1].last_offset for producer in producers if producer.batches},
            aborted=keys.aborted or (),
        )
        return CompactionFilter(rules, latest)

    # ---- second time through ------------------------------------------------------------------------------------

    async def _rewrite(self, group: Sequence[Segment], compaction: CompactionFilter, first_dirty_offset: int) -> bool:
        """Replace a group by its remaining records; False if its segments have changed meanwhile."""
        async with self.compactor.rewriter.turn:
            return await self._rewrite_group(group, compaction, first_dirty_offset)

    async def _rewrite_group(
        self, group: Sequence[Segment], compaction: CompactionFilter, first_dirty_offset: int
    ) -> bool:
        if not self._is_read(group):
            return False
        sources = await self._source_footers(group)
        left = RewritePass(compaction, max(source.last_offset for source in sources))
        await self._read(group, group[0].base_offset, left)
        tells_more = first_dirty_offset > self.part.first_dirty_offset
        if len(group) == 1 and not left.has_changed and not tells_more:
            return True
        if not self._is_read(group):
            return False
        footer = await _off_the_loop(len(left.body), lambda: self._make_footer(group, sources, left))
        footer = attrs.evolve(footer, first_dirty_offset=first_dirty_offset)
        self.compactor.written_bytes.value += len(left.body)
        return await self.compactor.rewriter.replace(self.partition, group, footer, [left.body])

    async def _source_footers(self, group: Sequence[Segment]) -> Sequence[Footer]:
        kept_from = self.partition.producers.kept_from
        if kept_from is None or kept_from > group[-1].last_offset:
            return [await self.compactor.footers.get(segment) for segment in group]
        return [await read_footer(self.compactor.footers.store, segment.key) for segment in group]

    def _is_read(self, group: Sequence[Segment]) -> bool:
        """Tell whether the segments are still read; if not, their objects may be gone."""
        return not self.partition.closed and all(self.partition.manifest.refers_to(segment.key) for segment in group)

    def _make_footer(self, group: Sequence[Segment], sources: Sequence[Footer], left: RewritePass) -> Footer:
        if not left.spans:
            raise DamagedObject(f"{group[-1].kfs_key}: no batch ends at its last offset, {left.last_offset}")
        identity = Identity(
            topic_id=self.partition.topic_id,
            partition=self.partition.index,
            base_offset=group[0].base_offset,
            generation=self.generation,
            leader_epoch=self.partition.leader_epoch,
            created_ms=max(source.identity.created_ms for source in sources),  # as Kafka: retention may go by it
            batch_count=len(left.spans),
            body_bytes=len(left.body),
            max_timestamp_ms=left.max_timestamp_ms,
            body_crc=left.crc(),
        )
        in_order = sorted(sources, key=lambda each: each.last_offset)
        end = in_order[-1]
        aborted = {transaction.marker_offset: transaction for source in in_order for transaction in source.aborted}
        footer = build_footer(
            identity,
            left.spans,
            producers=producers_of(self.partition, in_order),
            producers_from=min(end.producers_from, identity.base_offset),
            epochs=end.epochs,
            aborted=[aborted[offset] for offset in sorted(aborted.keys() & left.marker_offsets)],
            open_transactions=end.open_transactions,
        )
        last_offset = max(footer.last_offset, *(segment.last_offset for segment in group))
        return attrs.evolve(footer, last_offset=last_offset, record_count=left.record_count)

    # ---- reading ------------------------------------------------------------------------------------------------

    async def _read(self, segments: Sequence[Segment], start_offset: int, batch_pass: BatchPass) -> None:
        """Read all batches from the one that holds `start_offset`. Raises NotFound, DamagedObject, StoreError."""
        for stretch in stretches(segments, start_offset):
            if batch_pass.is_over or self.partition.closed:
                return
            if self.partition.manifest.refers_to(stretch.segment.key):  # retention takes the oldest
                await self._read_stretch(stretch, batch_pass)

    async def _read_stretch(self, stretch: Stretch, batch_pass: BatchPass) -> None:
        key = stretch.segment.kfs_key
        feed = _SegmentFeed(stretch, await self.compactor.footers.get(stretch.segment), batch_pass)
        try:
            async with aclosing(read_pieces(self.compactor.rewriter.store, key, feed.start, feed.end)) as pieces:
                async for piece in pieces:
                    self.compactor.read_bytes.value += len(piece)
                    for part in slices_of(piece, SLICE_BYTES):
                        await _off_the_loop(len(part), lambda part=part: feed.take(part))  # type: ignore[misc]
                    if batch_pass.is_over or self.partition.closed:
                        return
            feed.finish()
        except KafkaError as exc:
            raise DamagedObject(f"{key}: {exc}") from exc


@attrs.define(eq=False, repr=False)
class _SegmentFeed:
    """Cuts one segment into batches and passes on those of a stretch."""

    stretch: Stretch
    footer: Footer
    batch_pass: BatchPass
    start: int = attrs.field(init=False)
    end: int = attrs.field(init=False)
    _splitter: BatchSplitter = attrs.field(init=False)
    _crc: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.start = self.footer.row_start(self.footer.row_of(self.stretch.start_offset))
        self.end = self.footer.end_position
        self._splitter = BatchSplitter(self.start, self.end)

    def take(self, piece: Buffer) -> None:
        self._crc = crc32c(piece, self._crc)
        for batch in self._splitter.feed(piece):
            header = parse_header(batch.data)
            if header.last_offset >= self.stretch.start_offset and header.base_offset < self.stretch.stop_offset:
                self.batch_pass.take(batch.data)

    def finish(self) -> None:
        self._splitter.finish()
        if self.start == HEADER.size and self._crc != self.footer.identity.body_crc:
            raise DamagedObject(f"{self.stretch.segment.kfs_key}: the batches' CRC-32C is wrong")


async def _off_the_loop(size_bytes: int, work: Callable[[], T]) -> T:
    if size_bytes < THREAD_BYTES:
        return work()
    return await trio.to_thread.run_sync(work)


@attrs.define(eq=False, kw_only=True, repr=False)
class Compactor:
    """Periodically compacts partitions that are worth it.

    map_bytes: memory for the offset map. target_bytes: approximate size of written segments.
    """

    rewriter: Rewriter
    footers: Footers
    map_bytes: int
    target_bytes: int
    interval_seconds: float
    read_bytes: Counter = attrs.field(factory=Counter, init=False)
    written_bytes: Counter = attrs.field(factory=Counter, init=False)
    removed_records: Counter = attrs.field(factory=Counter, init=False)
    rounds_count: Counter = attrs.field(factory=Counter, init=False)
    failed_count: Counter = attrs.field(factory=Counter, init=False)
    unreadable_count: Counter = attrs.field(factory=Counter, init=False)
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    max_dirty_ratio: float = attrs.field(default=0.0, init=False)  # of all partitions, when they were last looked at
    _paused_until: WeakKeyDictionary[Partition, float] = attrs.field(factory=WeakKeyDictionary, init=False)
    _damage: WeakKeyDictionary[Partition, str] = attrs.field(factory=WeakKeyDictionary, init=False)  # met the last time
    _reported_to: WeakKeyDictionary[Partition, int] = attrs.field(factory=WeakKeyDictionary, init=False)
    _generations: WeakKeyDictionary[Partition, int] = attrs.field(factory=WeakKeyDictionary, init=False)

    def register(self, metrics: Metrics) -> None:
        count = metrics.adopt_counter
        count("kafscale_compaction_read_bytes_total", "Bytes of record batches that compactions read.", self.read_bytes)
        count(
            "kafscale_compaction_written_bytes_total",
            "Bytes of record batches that compactions wrote.",
            self.written_bytes,
        )
        count("kafscale_compaction_removed_records_total", "Records that compactions removed.", self.removed_records)
        count("kafscale_compactions_total", "Finished compactions of a partition.", self.rounds_count)
        count(
            "kafscale_compaction_failures_total", "Compactions that failed; the log has the reason.", self.failed_count
        )
        help = "Batches with unreadable records that compactions kept."
        count("kafscale_compaction_unreadable_batches_total", help, self.unreadable_count)
        help = "Share of dirty bytes in the dirtiest compacted partition."
        metrics.gauge("kafscale_compaction_max_dirty_ratio", help, lambda: self.max_dirty_ratio)

    async def run(self, partitions: Callable[[], Iterable[Partition]]) -> None:
        """Compact partitions at every interval, until cancelled. Raises Fenced."""
        while True:
            await trio.sleep(self.interval_seconds)
            await self.compact_all(partitions)

    async def compact_all(self, partitions: Callable[[], Iterable[Partition]]) -> None:
        """Compact the dirtiest partition until none is worth it. Raises Fenced."""
        while (part := await self._dirtiest(partitions())) is not None:
            partition = part.partition
            self._paused_until[partition] = trio.current_time() + self.interval_seconds
            try:
                if await self._compact(part):
                    del self._paused_until[partition]
            except (DamagedObject, StoreError) as exc:
                self._failed(partition, exc)

    async def _dirtiest(self, partitions: Iterable[Partition]) -> CleanablePart | None:
        worth_it: list[CleanablePart] = []
        max_dirty_ratio = 0.0
        for count, partition in enumerate(partitions, start=1):
            if not count % PASSED_BY_COUNT:
                await trio.lowlevel.checkpoint()
            if not partition.config.compact or not partition.manifest.segments:
                continue
            if partition.closed or self._paused_until.get(partition, 0.0) > trio.current_time():
                continue
            try:
                part = await find_cleanable(partition, self.footers, self.now_ms())
                await trio.lowlevel.checkpoint()  # it goes through all segments of the partition
            except (DamagedObject, StoreError) as exc:
                self._failed(partition, exc)
                continue
            max_dirty_ratio = max(max_dirty_ratio, part.dirty_ratio)
            if part.is_worth_it:
                worth_it.append(part)
        self.max_dirty_ratio = max_dirty_ratio
        return max(worth_it, key=lambda part: part.dirty_ratio, default=None)

    def _failed(self, partition: Partition, exc: Exception) -> None:
        if partition.closed:
            return  # the topic was deleted meanwhile, and its objects
        self.failed_count.value += 1
        if isinstance(exc, DamagedObject) and self._damage.get(partition) == str(exc):
            self._paused_until[partition] = math.inf
            logger.error("%s is not compacted any more until the next start: %s", partition, exc)
            return
        if isinstance(exc, DamagedObject):
            self._damage[partition] = str(exc)
        self._paused_until[partition] = trio.current_time() + FAILED_PAUSE_SECONDS
        logger.error("compaction of %s failed and is tried again later: %s", partition, exc)

    async def _compact(self, part: CleanablePart) -> bool:
        partition, started = part.partition, trio.current_time()
        size_bytes = partition.manifest.size_bytes
        this_round = CompactionRound(part=part, compactor=self, generation=self._next_generation(partition))
        self._generations[partition] = this_round.generation
        async with self.rewriter.reserve(partition):
            is_done = await this_round.run()
        if this_round.unreadable.count:
            self._report_unreadable(partition, this_round.unreadable)
        if is_done:
            self._damage.pop(partition, None)
            self.rounds_count.value += 1
            logger.info(
                "compacted %s from offset %d on in %.1f s: %d bytes were %d",
                partition,
                part.first_dirty_offset,
                trio.current_time() - started,
                partition.manifest.size_bytes,
                size_bytes,
            )
        return is_done

    def _report_unreadable(self, partition: Partition, unreadable: Unreadable) -> None:
        if unreadable.first_offset > self._reported_to.get(partition, -1):
            self._reported_to[partition] = unreadable.first_offset
            self.unreadable_count.value += unreadable.count
            logger.warning(
                "%s: the records of %d batches, the first at offset %d, are not to be read, and compaction keeps them "
                "as their clients sent them: %s",
                partition,
                unreadable.count,
                unreadable.first_offset,
                unreadable.reason,
            )

    def _next_generation(self, partition: Partition) -> int:
        """Return one above every generation that the bucket may hold of a partition."""
        newest = max((segment.generation for segment in partition.manifest.segments), default=0)
        return max(newest + GENERATIONS_LEFT_OUT_COUNT, self._generations.get(partition, 0)) + 1
