"""Read a partition: the memory tail, else a segment by its footer and at most one ranged GET.

Returns whole record batches, as Kafka does: the first one may begin before the requested offset, and is returned even
if it is larger than `max_bytes`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.errors import CorruptBatch, DamagedBatch, DamagedObject, KafkaError, NotFound
from kafscale.formats.manifest import Segment
from kafscale.formats.segment import Footer
from kafscale.formats.transactions import AbortedTransaction
from kafscale.log.partition.partition import Partition
from kafscale.log.partition.tail import Slices, TailBatch, coalesce
from kafscale.log.read.checking import keep_whole
from kafscale.log.read.file_ranges import NO_END, FileRanges, FileSlice
from kafscale.log.read.footers import Footers, aborted_behind, aborted_behind_nowait, aborted_in
from kafscale.log.read.ranges import RangeReader
from kafscale.log.read.read_ahead import ReadAhead
from kafscale.log.read.time_search import FoundOffset, TimeSearch
from kafscale.log.read.unpacking import Unpacking
from kafscale.log.repair.repair import Examiner
from kafscale.metrics import Counter, Metrics
from kafscale.store.paths import SegmentKey
from kafscale.wire.batch_header import MAGIC, NO_PRODUCER_ID, BatchHeader, batches, encode_batch, parse_header
from kafscale.wire.error_codes import OFFSET_OUT_OF_RANGE

logger = logging.getLogger(__name__)

ALL_BYTES = 1 << 62
REPORTED_MAX_COUNT = 1024  # damaged batches that are remembered, so that each is examined and reported once
GAP_MAX_BYTES = 64 << 10  # of other partitions' entries between two batches that one read of the WAL takes along
RUN_MAX_BYTES = 1 << 20  # of the WAL by one read; a batch larger than this is read alone


@attrs.define(eq=False, kw_only=True, repr=False)
class LogReader:
    """Reads batches of any partition. `files` is None if the store is not a directory, or with a cache."""

    footers: Footers
    ranges: RangeReader
    read_ahead: ReadAhead
    unpacking: Unpacking
    files: FileRanges | None = None
    examiner: Examiner = attrs.field(init=False)
    unreadable_count: Counter = attrs.field(factory=Counter, init=False)  # of batches that look-ups by time met
    _reported: set[tuple[SegmentKey, int]] = attrs.field(factory=set, init=False)  # damaged batches, by first offset

    def __attrs_post_init__(self) -> None:
        self.examiner = Examiner(store=self.ranges.store)
        if self.files is not None:
            self.ranges.on_checked.append(self.files.note_checked)

    def register(self, metrics: Metrics) -> None:
        for part in (self.footers, self.ranges, self.read_ahead, self.examiner):
            part.register(metrics)
        help = "Batches with unreadable records found by look-ups by time."
        metrics.adopt_counter("kafscale_lookup_unreadable_batches_total", help, self.unreadable_count)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.read_ahead.run)
            if self.ranges.disk is not None:
                nursery.start_soon(self.ranges.disk.run)
            try:
                await trio.sleep_forever()
            finally:
                if self.files is not None:
                    self.files.close()

    def read_nowait(
        self, partition: Partition, offset: int, max_bytes: int, *, committed: bool = False
    ) -> Slices | FileSlice | None:
        """Return batches from memory, or a range of a file in the page cache, without a copy; None if they are
        elsewhere.

        `committed` is as for `read`. The caller owes `release()`.
        """
        end_offset = partition.last_stable_offset if committed else None
        selected = partition.select_tail(offset, max_bytes, end_offset)
        if selected:
            if not _are_pooled(selected):
                return None
            slices = coalesce(selected)
            if committed:
                slices.aborted = partition.transactions.aborted_between(offset, slices.end_offset)
            return slices
        if self.files is None or partition.closed:
            return None
        segment = partition.manifest.find(offset)
        footer = None if segment is None else self.footers.get_nowait(segment)
        if segment is None or footer is None or footer.last_offset < offset:
            return None
        first_offset = max(offset, segment.base_offset)
        end_offset = NO_END if end_offset is None else end_offset
        found = self.files.slice_nowait(segment, footer, first_offset, max_bytes, end_offset=end_offset)
        if committed and found is not None:
            aborted = self._aborted_nowait(partition, segment, footer, offset, found.end_offset)
            if aborted is None:
                found.release()
                return None
            found.aborted = aborted
        return found

    def _aborted_nowait(
        self, partition: Partition, segment: Segment, footer: Footer, offset: int, end_offset: int
    ) -> Sequence[AbortedTransaction] | None:
        """Return the aborted transactions in these offsets; None if a footer that is not in memory is needed."""
        aborted = aborted_in(footer, offset, end_offset) if footer.aborted else ()
        if footer.stable_end >= end_offset:
            return aborted
        behind = aborted_behind_nowait(self.footers, partition, segment, end_offset)
        return None if behind is None else [*aborted, *behind]

    async def read(
        self, partition: Partition, offset: int, max_bytes: int, *, may_wait: bool = True, committed: bool = False
    ) -> Slices | None:
        """Return batches from wherever they are; empty only at the high watermark. The caller owes `release()`.

        With `committed` they end at the last stable offset, and come with aborted transactions. A batch without records
        stands for a hole before that end. Bytes outside of the chunk pool count in the fetch budget; None if that is
        used up and the caller may not wait. Raises KafkaError OFFSET_OUT_OF_RANGE if `offset` was deleted meanwhile,
        UNKNOWN_TOPIC_OR_PARTITION or NOT_LEADER_OR_FOLLOWER if the partition was closed meanwhile; NotFound,
        DamagedObject, StoreError.
        """
        wanted_offset = offset
        # Both move on while this one waits, but the answer tells of them as they were: nothing may be behind that.
        end_offset = partition.last_stable_offset if committed else partition.high_watermark
        while offset < end_offset:
            _check_open(partition)
            selected = partition.select_tail(offset, max_bytes, end_offset)
            segment = None if selected else partition.manifest.find(offset)
            if selected:
                slices = await self._read_tail(partition, selected, may_wait)
            elif segment is None:  # a hole behind the last segment
                if offset >= partition.flushed_offset:
                    break
                offset = partition.flushed_offset
                continue
            else:
                wanted = _Wanted(max(offset, segment.base_offset), end_offset, max_bytes, may_wait)
                try:
                    slices = await self._read_segment(segment, wanted)
                    if committed and slices is not None and slices.buffers:
                        await self._add_aborted(slices, partition, segment, wanted.offset)
                except NotFound:
                    if not self._was_replaced(partition, segment):
                        raise
                    if offset < partition.log_start_offset:
                        what = f"{partition}: offset {offset} was deleted meanwhile"
                        raise KafkaError(OFFSET_OUT_OF_RANGE, what) from None
                    continue
                except DamagedObject as exc:
                    await self._settle_damage(partition, segment, exc)
                    continue
                if committed and not partition.manifest.refers_to(segment.key):
                    if slices is not None:
                        slices.release()  # what took its place may not tell any more what was aborted in this one
                    continue
            if slices is None:
                return None
            if slices.buffers:
                if segment is not None:
                    self.read_ahead.consumed(partition, wanted_offset, slices)
                return slices
            slices.release()
            offset = max(offset, slices.end_offset)
        return _hole(partition, wanted_offset, end_offset)

    def forget(self, partition: Partition) -> None:
        """Forget a partition that was handed over, at 0.8 us a segment. Deleted topics age out of the caches."""
        self.read_ahead.forget(partition)
        for segment in partition.manifest.segments:
            self.footers.forget(segment)

    async def _read_tail(self, partition: Partition, selected: Sequence[TailBatch], may_wait: bool) -> Slices | None:
        """Read these batches of the tail; empty if they were flushed meanwhile."""
        first_offset, end_offset = selected[0].base_offset, selected[-1].last_offset + 1
        aborted = partition.transactions.aborted_between(first_offset, end_offset)
        if _are_pooled(selected):
            slices = coalesce(selected)
            slices.aborted = aborted
            return slices
        size_bytes = sum(batch.size_bytes for batch in selected)
        share = await self.ranges.budget.share(size_bytes, may_wait=may_wait)
        if share is None:
            return None
        try:
            selected = partition.select_tail(first_offset, size_bytes, end_offset)
            slices = await self.read_batches(selected) if selected else Slices()
        except BaseException:
            share.release()
            raise
        slices.leases.append(share)
        slices.aborted = aborted
        return slices

    async def read_batches(self, selected: Sequence[TailBatch]) -> Slices:
        """Read batches of the tail, the spilled ones from the journal. They are held meanwhile."""
        slices = Slices(end_offset=selected[-1].last_offset + 1)
        runs: list[tuple[int, Sequence[TailBatch]]] = []
        for in_pool, group in groupby(selected, key=lambda batch: batch.lease is not None):
            if in_pool:
                slices.add(coalesce(group))
            else:
                for run in _runs(group):
                    for batch in run:
                        assert batch.file is not None
                        batch.owner.journal.retain(batch.file)
                    runs.append((len(slices.buffers), run))
                    slices.buffers.append(b"")
        try:
            for place, run in runs:
                slices.buffers[place] = await self._read_back(run)
        except BaseException:
            slices.release()
            raise
        finally:
            for batch in (batch for _, run in runs for batch in run):
                assert batch.file is not None
                batch.owner.journal.release(batch.file)
        return slices

    async def _read_back(self, run: Sequence[TailBatch]) -> Buffer:
        file = run[0].file
        assert file is not None
        return await run[0].owner.journal.read(file, [(batch.position, batch.size_bytes) for batch in run])

    async def _read_segment(self, segment: Segment, wanted: _Wanted) -> Slices | None:
        """Read a segment by at most one ranged GET; empty if it has no record up to the slices' `end_offset`."""
        footer, offset = await self.footers.get(segment), wanted.offset
        if footer.last_offset < offset:  # the listing told where the next one begins, not where this one ends
            return Slices(end_offset=max(segment.last_offset, footer.last_offset) + 1)
        row = footer.row_of(offset)
        end_row = footer.rows_within(row, wanted.max_bytes)
        is_cut = footer.last_offset >= wanted.end_offset
        if is_cut:
            end_row = min(end_row, footer.row_of(wanted.end_offset - 1) + 1)
        start, end = footer.row_start(row), footer.row_start(end_row)
        slices = await self.ranges.read(segment.key, start, end, may_wait=wanted.may_wait)
        if slices is not None:
            slices.end_offset = footer.offset_at(start + slices.size_bytes)
            try:
                if slices.is_damaged:
                    keep_whole(slices, offset, footer.row_offset(row), segment.kfs_key)
                _cut(slices, offset, wanted.max_bytes, segment.kfs_key)
                if is_cut:
                    _cut_end(slices, wanted.end_offset, segment.kfs_key)
            except DamagedObject:
                slices.release()
                raise
            if footer.aborted:
                slices.aborted = aborted_in(footer, offset, slices.end_offset)
        return slices

    async def _add_aborted(self, slices: Slices, partition: Partition, segment: Segment, offset: int) -> None:
        """Add aborted transactions from later segments and the tail. Raises as `read`."""
        try:
            footer = await self.footers.get(segment)
            if footer.stable_end < slices.end_offset:
                end_offset, settle = slices.end_offset, self._settle_damage
                behind = await aborted_behind(self.footers, partition, segment, end_offset, settle)
                slices.aborted = [*slices.aborted, *behind]
        except BaseException:
            slices.release()
            raise

    async def _settle_damage(self, partition: Partition, segment: Segment, damage: DamagedObject) -> None:
        """Rebuild or quarantine a damaged segment. Raises as `Examiner.settle`.

        Raises CorruptBatch for a damaged batch of a segment that stays, which is examined and reported once.
        """
        try:
            if isinstance(damage, DamagedBatch) and (segment.key, damage.first_offset) in self._reported:
                raise damage
            await self.examiner.settle(partition, segment, damage)
        except DamagedBatch as exc:
            self._report(partition, segment, exc)
            raise CorruptBatch(str(exc)) from exc
        finally:
            self.footers.forget(segment)  # and what is cached of it

    def _report(self, partition: Partition, segment: Segment, damage: DamagedBatch) -> None:
        found = segment.key, damage.first_offset
        if found in self._reported:
            return
        if len(self._reported) >= REPORTED_MAX_COUNT:
            self._reported.clear()
        self._reported.add(found)
        logger.error(
            "%s; consumers of %s get CORRUPT_MESSAGE there: run `kafscale verify`, then put the object back from a "
            "copy, or let consumers seek to offset %d",
            damage,
            partition,
            damage.last_offset + 1,
        )

    # ---- look-up by time --------------------------------------------------------------------------------------

    async def find_timestamp(self, partition: Partition, timestamp_ms: int) -> FoundOffset | None:
        """Find the first record, in order of offset, whose timestamp is not before `timestamp_ms` (ListOffsets).

        Raises NotFound, DamagedObject, StoreError, and KafkaError if the partition is closed meanwhile.
        """
        offset = partition.log_start_offset
        while True:  # each time anew: what was in the tail may be in a segment by now
            _check_open(partition)
            found = None
            segment = partition.manifest.find(offset)
            if segment is not None:
                if segment.max_timestamp_ms >= timestamp_ms:
                    try:
                        found = await self._find_in_segment(segment, offset, timestamp_ms)
                    except NotFound:
                        _check_open(partition)
                        if not self._was_replaced(partition, segment):
                            raise
                        offset = max(offset, partition.log_start_offset)
                        continue
                    except DamagedObject as exc:
                        await self._settle_damage(partition, segment, exc)
                        continue
                offset = segment.last_offset + 1
            else:
                durable = partition.select_tail(max(offset, partition.flushed_offset), ALL_BYTES)
                batch = next((batch for batch in durable if batch.max_timestamp_ms >= timestamp_ms), None)
                if batch is None:
                    return None
                found = await self._find_in_tail_batch(batch, offset, timestamp_ms)
                offset = batch.last_offset + 1
            if found is not None:
                return found

    async def _find_in_segment(self, segment: Segment, min_offset: int, timestamp_ms: int) -> FoundOffset | None:
        footer = await self.footers.get(segment)
        for row in range(footer.row_of(min_offset), len(footer.index.positions)):
            if footer.index.max_timestamps_ms[row] >= timestamp_ms:
                slices = await self.ranges.read(segment.key, footer.row_start(row), footer.row_start(row + 1))
                assert slices is not None
                damage = None
                try:
                    if slices.is_damaged:
                        slices.end_offset, row_offset = footer.row_offset(row + 1), footer.row_offset(row)
                        damage = keep_whole(slices, max(min_offset, row_offset), row_offset, segment.kfs_key)
                    found = await self._search(min_offset, timestamp_ms).find(slices.buffers[0])
                finally:
                    slices.release()
                if found is not None:
                    return found
                if damage is not None:
                    raise damage
        return None

    def _search(self, min_offset: int, timestamp_ms: int | None) -> TimeSearch:
        return TimeSearch(min_offset, timestamp_ms, self.unpacking, self.unreadable_count)

    async def _find_in_tail_batch(self, batch: TailBatch, min_offset: int, timestamp_ms: int) -> FoundOffset | None:
        slices = await self.read_batches([batch])
        try:
            return await self._search(min_offset, timestamp_ms).find(slices.buffers[0])
        finally:
            slices.release()

    async def find_max_timestamp(self, partition: Partition) -> FoundOffset | None:
        """Find the first live record with the largest timestamp (KIP-734), or None. Raises as `find_timestamp`."""
        while True:  # anew if the log start has moved, or segments were replaced, since the look at all of them
            log_start_offset, segments = partition.log_start_offset, partition.manifest.segments
            latest_ms = await self._latest_ms(partition)
            if latest_ms is not None:
                found = None if latest_ms < 0 else await self.find_timestamp(partition, latest_ms)
                is_current = partition.log_start_offset == log_start_offset and partition.manifest.segments is segments
                if found is not None or is_current:
                    return found

    async def _latest_ms(self, partition: Partition) -> int | None:
        """Return the largest timestamp of all live records, -1 without records; None if segments have changed.

        A segment or batch is read only if the log starts in it and it may have the largest.
        """
        _check_open(partition)
        min_offset = partition.log_start_offset
        tail = partition.select_tail(max(min_offset, partition.flushed_offset), ALL_BYTES)
        segments = [segment for segment in partition.manifest.segments if segment.last_offset >= min_offset]
        latest_ms = max((batch.max_timestamp_ms for batch in tail if batch.base_offset >= min_offset), default=-1)
        if tail and tail[0].base_offset < min_offset and tail[0].max_timestamp_ms > latest_ms:
            latest_ms = max(latest_ms, await self._latest_ms_in(await self.read_batches(tail[:1]), min_offset))
        for segment in reversed(segments):  # the one in which the log starts comes last
            try:
                segment_ms = await self.footers.max_timestamp_ms(partition.manifest, segment)
                if segment_ms > latest_ms and segment.base_offset < min_offset:
                    segment_ms = await self._latest_ms_in_segment(segment, min_offset, latest_ms)
            except NotFound:
                _check_open(partition)
                if not self._was_replaced(partition, segment):
                    raise
                return None
            except DamagedObject as exc:
                await self._settle_damage(partition, segment, exc)
                return None
            latest_ms = max(latest_ms, segment_ms)
        return latest_ms

    async def _latest_ms_in_segment(self, segment: Segment, min_offset: int, known_ms: int) -> int:
        """Return the largest timestamp from an offset on; reads its row of the index if `known_ms` is less."""
        footer = await self.footers.get_with_timestamps(segment)
        row, rows_ms = footer.row_of(min_offset), footer.index.max_timestamps_ms
        known_ms = max(known_ms, max(rows_ms[row + 1 :], default=-1))
        if rows_ms[row] <= known_ms:
            return known_ms
        slices = await self.ranges.read(segment.key, footer.row_start(row), footer.row_start(row + 1))
        assert slices is not None
        return max(known_ms, await self._latest_ms_in(slices, min_offset))

    async def _latest_ms_in(self, slices: Slices, min_offset: int) -> int:
        try:
            return await self._search(min_offset, None).latest_ms(slices.buffers[0])
        finally:
            slices.release()

    def _was_replaced(self, partition: Partition, segment: Segment) -> bool:
        """Tell whether a segment that is gone was replaced or deleted."""
        self.footers.forget(segment)
        return not partition.manifest.refers_to(segment.key)


@attrs.frozen
class _Wanted:
    """A read of a segment: from `offset` to `end_offset` (exclusive), at most `max_bytes`."""

    offset: int
    end_offset: int
    max_bytes: int
    may_wait: bool


def _hole(partition: Partition, offset: int, until: int) -> Slices:
    if offset >= until:
        return Slices()
    batch, end_offset = empty_batch(offset, until, partition.epoch_of(offset))
    return Slices([batch], end_offset=end_offset, is_hole=True)


def _are_pooled(selected: Sequence[TailBatch]) -> bool:
    """Tell whether memory has all batches: the oldest are the first to be spilled."""
    return selected[0].lease is not None


def _check_open(partition: Partition) -> None:
    if partition.closed:
        raise KafkaError(partition.closed_error, f"{partition} was closed meanwhile")


def _runs(spilled: Iterable[TailBatch]) -> Iterator[Sequence[TailBatch]]:
    """Group batches that are close together in one file, for one read each."""
    run: list[TailBatch] = []
    for batch in spilled:
        if run and (
            batch.file is not run[0].file
            or batch.position > run[-1].position + run[-1].size_bytes + GAP_MAX_BYTES
            or batch.position + batch.size_bytes > run[0].position + RUN_MAX_BYTES
        ):
            yield run
            run = []
        run.append(batch)
    if run:
        yield run


def _cut(slices: Slices, offset: int, max_bytes: int, name: str) -> None:
    """Keep the batches from the one that ends at `offset` or later, at most `max_bytes` but at least one.

    Several rows fit into `max_bytes` already, so only the first buffer can be too large.
    """
    while slices.buffers:
        first = memoryview(slices.buffers[0])
        start = _start_of(first, offset, name)
        if start < len(first):
            end = len(first) if len(first) - start <= max_bytes else _end_of(first, start, max_bytes, name)
            if end < len(first):
                slices.end_offset = parse_header(first[end:]).base_offset
            slices.buffers[0] = first[start:end]
            return
        del slices.buffers[0]
        slices.leases.pop(0).release()


def _cut_end(slices: Slices, end_offset: int, name: str) -> None:
    """Keep the batches before `end_offset`; all but the last buffers end before it."""
    while slices.buffers:
        last = memoryview(slices.buffers[-1])
        position = 0
        for batch in _batches(last, name):
            base_offset = parse_header(batch).base_offset
            if base_offset >= end_offset:
                slices.end_offset = base_offset
                break
            position += len(batch)
        if position:
            slices.buffers[-1] = last[:position]
            return
        slices.buffers.pop()
        slices.leases.pop().release()


def _start_of(data: memoryview, offset: int, name: str) -> int:
    """Return the start of the first batch that ends at `offset` or later, or the length of the data."""
    position = 0
    for batch in _batches(data, name):
        if parse_header(batch).last_offset >= offset:
            break
        position += len(batch)
    return position


def _end_of(data: memoryview, start: int, max_bytes: int, name: str) -> int:
    """Return the end of the last batch from `start` on within `max_bytes`, at least of the first one."""
    position = start
    for batch in _batches(data[start:], name):
        if position > start and position + len(batch) - start > max_bytes:
            break
        position += len(batch)
    return position


def _batches(data: memoryview, name: str) -> Iterator[memoryview]:
    try:
        yield from batches(data)
    except KafkaError as exc:
        raise DamagedObject(f"{name}: {exc}") from exc


OFFSETS_MAX_COUNT: Final = 1 << 31  # of one batch; behind a longer hole the next fetch is given another one
_NONE: Final = -1


def empty_batch(base_offset: int, end_offset: int, leader_epoch: int) -> tuple[bytearray, int]:
    """Return a batch without records from `base_offset` to `end_offset` (exclusive), or as long as possible, and its
    end.

    It answers a fetch in a hole at the end of the log, where a segment is missing or quarantined: every client moves
    its position behind it. With an empty answer a consumer would ask for the same offset for ever; with
    OFFSET_OUT_OF_RANGE it would read everything again.
    """
    count = min(end_offset - base_offset, OFFSETS_MAX_COUNT)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=count - 1,
        base_timestamp_ms=_NONE,
        max_timestamp_ms=_NONE,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=_NONE,
        base_sequence=_NONE,
        record_count=0,
    )
    return encode_batch(header, b""), base_offset + count
