"""Merge small neighbouring segments in the background, one merge at a time: docs/discussion/rooms/log.md.

It looks at a partition that got a segment or was compacted, and goes first where one merge removes most objects. A
damaged or missing source is reported once and excluded. When the store fails, all merging pauses.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from weakref import WeakKeyDictionary

import attrs
import trio

from kafscale.buffers import Buffer, size_of, slices_of
from kafscale.concurrency.nurseries import for_each
from kafscale.concurrency.signals import Signal
from kafscale.errors import DamagedObject, NotFound, StoreError
from kafscale.formats import segment_v1
from kafscale.formats.footer_reading import decode_end
from kafscale.formats.manifest import Segment
from kafscale.formats.segment import HEADER, INDEX_ROWS_MAX_COUNT, Footer, Identity, Index, rows_of
from kafscale.formats.segment_check import BodyCheck
from kafscale.formats.transactions import Producer
from kafscale.log.flush.upload import crc_of
from kafscale.log.partition.partition import Partition
from kafscale.log.rewrite.rewriting import Rewriter
from kafscale.metrics import Counter, Metrics
from kafscale.store.base import ObjectStore
from kafscale.store.paths import SegmentKey
from kafscale.wire.batch_header import BatchHeader

logger = logging.getLogger(__name__)

GETS_AT_ONCE_COUNT = 4
FAILED_MERGE_PAUSE_SECONDS = 60.0  # the store client has retried already, and no request waits for a merge
PRESSED_PAUSE_SECONDS = 1.0
LOOKED_AT_MAX_COUNT = 2000  # segments; then others may run

_base_offset = attrgetter("base_offset")
_last_offset = attrgetter("last_offset")


@attrs.define(eq=False, kw_only=True, repr=False)
class Merger:
    """Merges segments to about `target_bytes` (0: never). `is_pressed` tells whether producers fill the pool."""

    rewriter: Rewriter
    target_bytes: int
    is_pressed: Callable[[], bool] = lambda: False
    merges_count: Counter = attrs.field(factory=Counter, init=False)
    sources_count: Counter = attrs.field(factory=Counter, init=False)
    merged_bytes: Counter = attrs.field(factory=Counter, init=False)
    failed_count: Counter = attrs.field(factory=Counter, init=False)
    _changed: dict[Partition, None] = attrs.field(factory=dict, init=False)  # to be looked at
    _worthwhile: dict[Partition, int] = attrs.field(factory=dict, init=False)  # and how many segments it would merge
    _settled: WeakKeyDictionary[Partition, int] = attrs.field(factory=WeakKeyDictionary, init=False)
    _excluded: set[SegmentKey] = attrs.field(factory=set, init=False)
    _wake: Signal = attrs.field(factory=Signal, init=False)

    def __attrs_post_init__(self) -> None:
        self.rewriter.on_released.append(self._note_rewritten)

    def register(self, metrics: Metrics) -> None:
        count = metrics.adopt_counter
        count("kafscale_merges_total", "Merges of small segments into a larger one.", self.merges_count)
        count("kafscale_merged_segments_total", "Small segments that merges replaced.", self.sources_count)
        count("kafscale_merged_bytes_total", "Bytes of record batches in merged segments.", self.merged_bytes)
        help = "Merges that failed and are tried again, and segments that can't be merged."
        count("kafscale_merge_failures_total", help, self.failed_count)

    def note(self, partition: Partition) -> None:
        if self.target_bytes:
            self._changed[partition] = None
            self._wake.set()

    def forget(self, partition: Partition) -> None:
        self._changed.pop(partition, None)
        self._worthwhile.pop(partition, None)

    def _note_rewritten(self, partition: Partition) -> None:
        """Look again at a compacted partition, whose segments may be smaller now."""
        self._settled.pop(partition, None)
        self.note(partition)

    async def run(self, partitions: Iterable[Partition]) -> None:
        """Merge existing and new segments, until cancelled. Raises Fenced."""
        for partition in partitions:
            self.note(partition)
        while True:
            self._wake.clear()
            await self._look()
            best = max(self._worthwhile, key=self._worthwhile.__getitem__, default=None)
            if best is None:
                await self._wake.wait()
            elif self._worthwhile[best] < MERGE_FACTOR and self.is_pressed():
                await trio.sleep(PRESSED_PAUSE_SECONDS)
            else:
                await self._merge(best)

    # ---- which --------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        while self._changed:
            partition, _ = self._changed.popitem()
            self._worthwhile.pop(partition, None)
            sources = await self._sources_of(partition)
            if sources and not partition.is_leaving:
                self._worthwhile[partition] = len(sources)
            await trio.lowlevel.checkpoint()

    async def _sources_of(self, partition: Partition) -> Sequence[Segment]:
        """Return the segments to merge next; under pressure, a group that removes many objects if there is one."""
        if self.is_pressed():
            sources = await self._first_group(partition, MERGE_FACTOR)
            if sources:
                return sources
        return await self._first_group(partition, 2)

    async def _first_group(self, partition: Partition, least_count: int) -> Sequence[Segment]:
        """Find the first group to merge, and remember up to where no search is needed again."""
        while True:
            segments = partition.manifest.segments
            first = max(
                bisect_left(segments, self._settled.get(partition, 0), key=_base_offset),
                bisect_left(segments, partition.log_start_offset, key=_last_offset),
            )
            looked_at = segments[first : first + LOOKED_AT_MAX_COUNT]
            found = find_sources(looked_at, self.target_bytes, least_count=least_count, excluded=self._excluded)
            if found.open_from < len(looked_at):
                self._settled[partition] = looked_at[found.open_from].base_offset
            elif looked_at:
                self._settled[partition] = looked_at[-1].base_offset + 1
            if found.sources or not found.open_from or first + len(looked_at) == len(segments):
                return found.sources
            await trio.lowlevel.checkpoint()

    # ---- one merge ----------------------------------------------------------------------------------------------

    async def _merge(self, partition: Partition) -> None:
        del self._worthwhile[partition]
        try:
            async with self.rewriter.turn:
                sources = await self._sources_of(partition)  # once more: retention may have taken some
                if partition.is_leaving or not sources or partition in self.rewriter.reserved:
                    return
                await self._merge_segments(partition, sources)
        except (StoreError, DamagedObject) as exc:
            if not partition.closed:
                self.failed_count.value += 1
                logger.error("merging %d segments of %s failed and is tried again: %s", len(sources), partition, exc)
                await trio.sleep(FAILED_MERGE_PAUSE_SECONDS)
        self.note(partition)

    async def _merge_segments(self, partition: Partition, segments: Sequence[Segment]) -> None:
        sources = await self._read(partition, segments)
        if len(sources) < len(segments):
            return  # the next look leaves them out
        footer = await merged_footer(partition, sources)
        if partition.closed:
            return
        if not await self.rewriter.replace(partition, segments, footer, [source.body for source in sources]):
            return
        self.merges_count.value += 1
        self.sources_count.value += len(segments)
        self.merged_bytes.value += footer.identity.body_bytes
        logger.info(
            "merged %d segments of %s, offsets %d to %d, %d bytes",
            len(segments),
            partition,
            footer.identity.base_offset,
            footer.last_offset,
            footer.identity.body_bytes,
        )

    async def _read(self, partition: Partition, segments: Sequence[Segment]) -> Sequence[Source]:
        """Read the sources, in order; fewer if some can't be merged."""
        sources: dict[SegmentKey, Source] = {}

        async def read(segment: Segment) -> None:
            try:
                sources[segment.key] = await self._read_source(segment)
            except (NotFound, DamagedObject) as exc:
                self._exclude(partition, segment, exc)

        await for_each(segments, read, tasks_count=GETS_AT_ONCE_COUNT)
        return [sources[segment.key] for segment in segments if segment.key in sources]

    async def _read_source(self, segment: Segment) -> Source:
        """Read a source; again if it is damaged, which may have happened on its way."""
        try:
            return await read_source(self.rewriter.store, segment)
        except DamagedObject as exc:
            logger.info("reading a segment once more: %s", exc)
            return await read_source(self.rewriter.store, segment)

    def _exclude(self, partition: Partition, segment: Segment, exc: Exception) -> None:
        if partition.closed or not partition.manifest.refers_to(segment.key):
            return  # retention has taken it meanwhile
        self._excluded.add(segment.key)
        self.failed_count.value += 1
        logger.error("a segment of %s can't be merged with others, and stays as it is: %s", partition, exc)


# Which segments are merged. Segments of half the target size or more stay as they are. The others form groups of
# neighbours that fit into the target size. A group is closed when the next segment does not fit, does not adjoin, or
# stays as it is; the last group is open and still grows. A closed group of two or more is merged as a whole, once. Of
# the open group the longest end is merged that is MERGE_FACTOR times as large as its largest segment.
#
# Write amplification: a byte that was flushed in a segment of s bytes is written at most 2 + log10(target / 2s) times:
# with a target of 64 MiB 5 times from segments of 10 KiB, twice from 4 MiB, never from half of the target on.
MERGE_FACTOR = 10
SOURCES_MAX_COUNT = 1000  # of one merge; each is a GET


@attrs.frozen
class Found:
    """The segments to merge first, if any. Groups before index `open_from` need not be searched again."""

    sources: Sequence[Segment]
    open_from: int


def find_sources(
    segments: Sequence[Segment],
    target_bytes: int,
    *,
    least_count: int = 2,
    excluded: Collection[SegmentKey] = (),
) -> Found:
    """Find the first closed group of `least_count` or more, else what the open group gives."""
    first, size_bytes = 0, 0  # of the group that ends before `index`
    passed_over = len(segments)  # where the first group begins that has less than `least_count`
    for index, segment in enumerate(segments):
        is_small = 2 * segment.size_bytes < target_bytes and segment.key not in excluded
        if index > first and not (
            is_small
            and size_bytes + segment.size_bytes <= target_bytes
            and index - first < SOURCES_MAX_COUNT
            and segments[index - 1].last_offset + 1 == segment.base_offset
        ):
            if index - first >= least_count:
                return Found(segments[first:index], min(first, passed_over))
            if index - first > 1:
                passed_over = min(first, passed_over)
            first, size_bytes = index, 0
        if is_small:
            size_bytes += segment.size_bytes
        else:
            first = index + 1
    return Found(_worthwhile_end(segments[first:]), min(first, passed_over))


def _worthwhile_end(group: Sequence[Segment]) -> Sequence[Segment]:
    size_bytes, largest_bytes, first = 0, 0, len(group)
    for index in range(len(group) - 1, -1, -1):
        size_bytes += group[index].size_bytes
        largest_bytes = max(largest_bytes, group[index].size_bytes)
        if size_bytes >= MERGE_FACTOR * largest_bytes:
            first = index
    return group[first:]


SLICE_BYTES = 64 << 10  # checked at once: a quarter of a millisecond for batches of 1 KiB; then others may run


@attrs.frozen(eq=False, repr=False)
class Source:
    """A segment in memory. `footer` has timestamps and batches, also for version 1."""

    footer: Footer
    body: memoryview


async def read_source(store: ObjectStore, segment: Segment) -> Source:
    """Read and check a segment. Raises NotFound, DamagedObject, StoreError."""
    key = segment.key
    data = memoryview((await store.get(key.key)).data)
    if not segment_v1.is_version_1(data):
        footer = decode_end(data, len(data), key)
        body = data[HEADER.size : footer.end_position]
        await _check(key, footer, body, [])
        return Source(footer, body)
    ends = segment_v1.decode_ends(key, data, data, len(data))
    body = data[HEADER.size : HEADER.size + ends.body_bytes]
    headers: list[BatchHeader] = []
    await _check(key, segment_v1.footer_without_index(ends), body, headers)
    return Source(await trio.to_thread.run_sync(segment_v1.footer_from_batches, ends, headers), body)


async def _check(key: SegmentKey, footer: Footer, body: memoryview, headers: list[BatchHeader]) -> None:
    """Raise DamagedObject unless the batches are what the footer tells. `headers` gets those of version 1."""
    check = BodyCheck(
        footer=footer,
        base_offset=key.base_offset,
        end=footer.end_position,
        merged=key.generation > 0,
        on_batch=(lambda header, batch: headers.append(header)) if footer.version == segment_v1.VERSION else None,
    )
    for part in slices_of(body, SLICE_BYTES):
        check.feed(part)
        await trio.lowlevel.checkpoint()
    check.finish()
    if check.damage:
        raise DamagedObject(f"{key.key}: {check.damage[0]}")


async def merged_footer(partition: Partition, sources: Sequence[Source]) -> Footer:
    """Make the footer of all sources' batches, in this order. `Rewriter.replace` sets its generation."""
    footers = [source.footer for source in sources]
    first, last = footers[0], footers[-1]
    body: list[Buffer] = [source.body for source in sources]
    body_bytes = size_of(body)
    index = await _merged_index(footers, body_bytes)
    identity = Identity(
        topic_id=partition.topic_id,
        partition=partition.index,
        base_offset=first.identity.base_offset,
        generation=0,
        leader_epoch=partition.leader_epoch,
        created_ms=max(footer.identity.created_ms for footer in footers),  # what has no timestamps is as old as that
        batch_count=sum(footer.identity.batch_count for footer in footers),
        body_bytes=body_bytes,
        max_timestamp_ms=max(footer.identity.max_timestamp_ms for footer in footers),
        body_crc=await crc_of(body, body_bytes),
    )
    return Footer(
        identity=identity,
        last_offset=last.last_offset,
        record_count=sum(footer.record_count for footer in footers),
        index=index,
        producers=producers_of(partition, footers),
        producers_from=min(last.producers_from, first.identity.base_offset),
        epochs=last.epochs,
        first_dirty_offset=max(footer.first_dirty_offset for footer in footers),
        aborted=tuple(transaction for footer in footers for transaction in footer.aborted),
        open_transactions=last.open_transactions,
        marker_rows=_merged_marker_rows(footers, index),
    )


def producers_of(partition: Partition, footers: Sequence[Footer]) -> Sequence[Producer]:
    """Return the producers for the footer that replaces these, except those in later footers."""
    latest = {producer.producer_id: producer for footer in footers for producer in footer.producers}
    first_offset, last_offset = footers[0].identity.base_offset, footers[-1].last_offset
    return partition.producers.still_needed(latest.values(), first_offset, last_offset)


def _merged_marker_rows(footers: Sequence[Footer], index: Index) -> tuple[int, ...] | None:
    """Return the rows that have the sources' rows with markers; None if a source does not tell them."""
    offsets: list[int] = []
    for footer in footers:
        if footer.marker_rows is None:
            return None
        offsets += [footer.row_offset(row) for row in footer.marker_rows]
    return rows_of(index, offsets)


async def _merged_index(footers: Sequence[Footer], body_bytes: int) -> Index:
    """Merge the rows of all sources, several into one where there are too many."""
    count = sum(len(footer.index.positions) for footer in footers)
    row_bytes = 0 if count <= INDEX_ROWS_MAX_COUNT else body_bytes // INDEX_ROWS_MAX_COUNT
    merged = Index(array("q"), array("q"), array("q"), array("q"))
    moved_by = 0
    for footer in footers:
        _add_rows(merged, footer.index, moved_by, row_bytes)
        moved_by += footer.identity.body_bytes
        await trio.lowlevel.checkpoint()
    return merged


def _add_rows(merged: Index, added: Index, moved_by: int, row_bytes: int) -> None:
    for base_offset, position, max_timestamp_ms, min_timestamp_ms in zip(
        added.base_offsets, added.positions, added.max_timestamps_ms, added.min_timestamps_ms, strict=True
    ):
        if not merged.positions or position + moved_by - merged.positions[-1] > row_bytes:
            merged.base_offsets.append(base_offset)
            merged.positions.append(position + moved_by)
            merged.max_timestamps_ms.append(max_timestamp_ms)
            merged.min_timestamps_ms.append(min_timestamp_ms)
        else:
            merged.max_timestamps_ms[-1] = max(max_timestamp_ms, merged.max_timestamps_ms[-1])
            merged.min_timestamps_ms[-1] = min(min_timestamp_ms, merged.min_timestamps_ms[-1])
