"""Restore every partition from the bucket at a start: its segments, and its state from the last footer.

The listing tells which objects exist, and the manifest checkpoint vouches for segments. Footers are read only if
`kafscale.formats.resolution` asks for them, if the segment is merged, late or not in the checkpoint, if its `.index` is
missing, or if it holds some of very many producers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter

import attrs
import trio

from kafscale.concurrency.nurseries import for_each
from kafscale.errors import DamagedObject, NewerVersion, NotFound, StartupError
from kafscale.formats.footer_reading import index_goes_with, read_footer
from kafscale.formats.log_end import LogEnd
from kafscale.formats.manifest import MAX_TIMESTAMP_UNKNOWN, ListedSegment, PartitionId, Segment, segment_of
from kafscale.formats.manifest_checkpoint import KnownPartition, ManifestCheckpoint, MissingSegment
from kafscale.formats.resolution import NOTHING_DECIDED, Decided, Histories, Resolution, assumed_ends, resolve
from kafscale.formats.segment import EpochStart, Footer
from kafscale.log.bucket.listing import list_again
from kafscale.log.repair.repair import Examiner, Quarantined
from kafscale.metrics import Metrics
from kafscale.store.base import ObjectStore
from kafscale.store.paths import OFFSET_MAX, SegmentKey, topic_id_text

LISTINGS_MAX_COUNT = 10  # of one partition, whose segments are being deleted meanwhile
FOOTER_READS_MAX_COUNT = 256  # tasks; how many really run at once is the store's limiter's affair
EARLIER_READS_MAX_COUNT = 16  # of one partition with very many producers, at once
PARTITIONS_PER_STEP_COUNT = 100  # restored without a look at the store; then others may run

logger = logging.getLogger(__name__)

_last_offset = attrgetter("last_offset")
_name = attrgetter("key")


@attrs.frozen(kw_only=True)
class RestoredPartition:
    """The segments to read, and the state after the last one; None without segments.

    Offsets below `lost_before` that no segment has may have been acknowledged. `quarantined` has the last offset that
    each can have held. `missing` have gone. `late` were written by an earlier epoch after another broker had taken
    over.
    """

    segments: Sequence[Segment]
    end: LogEnd | None
    lost_before: int = 0
    quarantined: Mapping[SegmentKey, int] = attrs.field(factory=dict)
    missing: Sequence[MissingSegment] = ()
    late: Collection[SegmentKey] = ()


@attrs.define
class RestoreStatistics:
    listed_object_count: int = 0
    partition_count: int = 0
    restored_partition_count: int = 0
    vouched_segment_count: int = 0
    footer_read_count: int = 0
    missing_segment_count: int = 0
    seconds: float = 0.0  # all of it, but for the write-ahead log

    def register(self, metrics: Metrics) -> None:
        gauge = metrics.gauge
        help = "Objects that the start listed in the bucket."
        gauge("kafscale_start_listed_objects", help, lambda: self.listed_object_count)
        help = "Partitions of which the start found segments."
        gauge("kafscale_start_partitions", help, lambda: self.partition_count)
        gauge(
            "kafscale_start_restored_partitions",
            "Partitions that the start restored so far.",
            lambda: self.restored_partition_count,
        )
        help = "Segments that the start knew from the manifest checkpoint."
        gauge("kafscale_start_recognised_segments", help, lambda: self.vouched_segment_count)
        gauge("kafscale_start_footer_reads", "Segment footers that the start read.", lambda: self.footer_read_count)
        help = "Time that the start took to restore partitions from the bucket."
        gauge("kafscale_start_restore_seconds", help, lambda: self.seconds)
        help = "Segments of the manifest checkpoint that the start did not find."
        gauge("kafscale_missing_segments", help, lambda: self.missing_segment_count)


@attrs.frozen(eq=False, kw_only=True, repr=False)
class Restorer:
    """One start. `begun` tells known epoch starts of a partition, as for `resolve`."""

    store: ObjectStore
    examiner: Examiner
    checkpoint: ManifestCheckpoint
    log_start_offset: Callable[[PartitionId], int]
    begun: Callable[[PartitionId], Sequence[EpochStart]] = lambda partition_id: ()
    statistics: RestoreStatistics = attrs.field(factory=RestoreStatistics)

    async def restore(
        self, listed: Mapping[PartitionId, Sequence[ListedSegment]], on_progress: Callable[[int], None]
    ) -> Mapping[PartitionId, RestoredPartition]:
        """Restore all of these partitions. `on_progress` gets the number of partitions done.

        Raises StartupError if a newer KafScale has written what must be read, StoreError.
        """
        restored: dict[PartitionId, RestoredPartition] = {}
        self.statistics.partition_count = len(listed)

        async def work(partition_id: PartitionId) -> None:
            restored[partition_id] = await self.restore_partition(partition_id, listed[partition_id])
            self.statistics.restored_partition_count = len(restored)
            on_progress(len(restored))
            if not len(restored) % PARTITIONS_PER_STEP_COUNT:
                await trio.lowlevel.checkpoint()

        await for_each(listed, work, tasks_count=min(FOOTER_READS_MAX_COUNT, len(listed)))
        return restored

    async def restore_partition(
        self, partition_id: PartitionId, listed: Sequence[ListedSegment], *, begun: Sequence[EpochStart] = ()
    ) -> RestoredPartition:
        """Restore one partition; `listed` may be empty. Raises as `restore`.

        If a listed segment has gone, the partition is listed again: the earlier leader may go on for a moment with
        deletions of segments below the log start or covered by newer ones.
        """
        for _ in range(LISTINGS_MAX_COUNT - 1):
            try:
                return await self._restore_listed(partition_id, listed, begun)
            except NotFound as exc:
                logger.info("%s has been deleted since it was listed: listing its partition again", exc)
                listed = await list_again(self.store, listed)
        return await self._restore_listed(partition_id, listed, begun)

    async def _restore_listed(
        self, partition_id: PartitionId, listed: Sequence[ListedSegment], begun: Sequence[EpochStart]
    ) -> RestoredPartition:
        ordered = sorted(listed, key=lambda each: (each.key.base_offset, each.key.epoch, each.key.generation))
        work = _PartitionRestore(
            restorer=self,
            partition_id=partition_id,
            listed={segment.key: segment for segment in ordered},
            known=self.checkpoint.get(partition_id),
            log_start_offset=self.log_start_offset(partition_id),
            begun=[*self.begun(partition_id), *begun],
        )
        return await work.run()


@attrs.define(eq=False, kw_only=True, repr=False)
class _PartitionRestore:
    """Restores one partition. `segments` are those taken for good so far; the dictionaries are in order of offset."""

    restorer: Restorer
    partition_id: PartitionId
    listed: Mapping[SegmentKey, ListedSegment]
    known: KnownPartition | None
    log_start_offset: int
    begun: Sequence[EpochStart] = ()
    segments: dict[SegmentKey, Segment] = attrs.field(factory=dict, init=False)
    footers: dict[SegmentKey, Footer] = attrs.field(factory=dict, init=False)
    vouched: Collection[SegmentKey] = attrs.field(factory=set, init=False)  # by the checkpoint
    known_ends: Mapping[SegmentKey, int] = attrs.field(factory=dict, init=False)  # offsets behind those that changed
    decided: Decided = attrs.field(default=NOTHING_DECIDED, init=False)
    damaged: set[SegmentKey] = attrs.field(factory=set, init=False)
    quarantined: list[Quarantined] = attrs.field(factory=list, init=False)
    ends: Mapping[SegmentKey, int] = attrs.field(init=False)  # assumed, of what a flush has written

    def __attrs_post_init__(self) -> None:
        self.ends = assumed_ends(self.listed)

    async def run(self) -> RestoredPartition:
        missing = self._recognise()
        for key in self._keys_to_open():
            await self._open(key)
        self._assume_ends()
        resolution, end = await self._find_end()
        segments = resolution.segments
        self.quarantined = [damaged for damaged in self.quarantined if not self._is_superseded(damaged.key)]
        for damaged in self.quarantined:
            damaged.report(self._what_is_read_instead(damaged, segments))
        merged = [segment for segment in self.segments.values() if segment.generation]
        missing = [
            lost
            for lost in missing
            if lost.last_offset >= self.log_start_offset and not any(map(lost.may_be_in, merged))
        ]
        self._report_missing(missing)
        return RestoredPartition(
            segments=segments,
            end=end,
            lost_before=max(
                [
                    *(self._end_offset(damaged) for damaged in self.quarantined),
                    *(lost.last_offset + 1 for lost in missing),
                ],
                default=0,
            ),
            quarantined={damaged.key: self._end_offset(damaged) - 1 for damaged in self.quarantined},
            missing=missing,
            late=sorted({*resolution.late} & self.footers.keys(), key=_name),  # the others are damaged, too
        )

    # ---- what the checkpoint tells ------------------------------------------------------------------------------

    def _recognise(self) -> Sequence[MissingSegment]:
        if self.known is None:
            return ()
        recognised = self.known.recognise(self.listed.values())
        self.segments = {segment.key: segment for segment in recognised.segments}
        self.vouched = set(self.segments)
        self.decided = Decided(self.known.decided_by, {*self.vouched, *recognised.changed})
        self.known_ends = {key: last_offset + 1 for key, last_offset in recognised.changed.items()}
        self.restorer.statistics.vouched_segment_count += len(recognised.segments)
        return recognised.missing

    def _report_missing(self, missing: Sequence[MissingSegment]) -> None:
        self.restorer.statistics.missing_segment_count += len(missing)
        for lost in missing:
            topic_id, partition = self.partition_id
            logger.error(
                "offsets %d to %d of partition %d of topic %s are missing: their segment has gone from the bucket",
                lost.base_offset,
                lost.last_offset,
                partition,
                next((key.topic for key in self.listed), topic_id_text(topic_id)),
            )

    # ---- what must be read --------------------------------------------------------------------------------------

    def _keys_to_open(self) -> Iterable[SegmentKey]:
        """Yield newer generations first: they tell which others are not needed."""
        known_until = -1 if self.known is None else self.known.last_base_offset()
        by_generation = sorted(self.listed, key=lambda key: (-key.epoch, -key.generation, key.base_offset))
        for key in by_generation:
            if key in self.segments:
                continue
            if not key.generation and self.ends.get(key, OFFSET_MAX) < self.log_start_offset:
                continue  # below the log start: retention deletes it
            should_be_known = key.base_offset <= known_until and not self._is_superseded(key)
            if key.generation or should_be_known or not self.listed[key].has_index:
                yield key

    def _is_superseded(self, key: SegmentKey) -> bool:
        return any(
            segment.rank > (key.epoch, key.generation) and segment.base_offset <= key.base_offset <= segment.last_offset
            for segment in self.segments.values()
        )

    async def _open(self, key: SegmentKey) -> None:
        footer = await self._read(key)
        if footer is None:
            self.damaged.add(key)
            self.segments.pop(key, None)
            return
        self._learn(key, footer)
        # A flush that was killed can have left the .index of an earlier attempt, of other batches than the .kfs has.
        if not self.listed[key].has_index or not await index_goes_with(self.restorer.store, key, footer):
            await self.restorer.examiner.rebuild_index(key, footer)

    def _learn(self, key: SegmentKey, footer: Footer) -> None:
        self.footers[key] = footer
        self.segments[key] = segment_of(key, footer, fingerprint=self.listed[key].fingerprint)

    async def _read(self, key: SegmentKey) -> Footer | None:
        """Read a footer; None for a damaged one, which is quarantined if its offsets are still needed."""
        self.restorer.statistics.footer_read_count += 1
        try:
            return await read_footer(self.restorer.store, key)
        except NewerVersion as exc:
            raise StartupError(f"{exc}; start that version, or a newer one") from exc
        except DamagedObject as exc:
            if self._is_superseded(key):
                logger.info("%s: a newer segment is read instead", exc)
                return None
            before = [one for one in self.listed if one.base_offset < key.base_offset and one not in self.damaged]
            previous = max(before, key=lambda one: (one.base_offset, one.epoch, one.generation), default=None)
            found = await self.restorer.examiner.examine(key, exc, previous)
        if isinstance(found, Footer):
            return found
        self.quarantined.append(found)
        return None

    def _assume_ends(self) -> None:
        """Assume that a flush ends where the next one begins, so that its footer need not be read now."""
        for key, listed in self.listed.items():
            if key not in self.segments and key not in self.damaged:
                self.segments[key] = Segment(
                    key=key,
                    last_offset=self.ends.get(key, OFFSET_MAX),
                    size_bytes=listed.object_size_bytes,
                    max_timestamp_ms=MAX_TIMESTAMP_UNKNOWN,
                    fingerprint=listed.fingerprint,
                )

    async def _find_end(self) -> tuple[Resolution, LogEnd | None]:
        while True:
            resolution = await self._resolve()
            last = max(resolution.segments, key=_last_offset, default=None)
            if last is None:
                return resolution, None
            if last.key in self.footers:
                footer = self.footers[last.key]
                needed = self._with_producers(resolution.segments, footer)
                if await self._open_all(segment.key for segment in needed):
                    return resolution, LogEnd.of(footer, [self.footers[segment.key] for segment in needed])
                continue
            end = self.known.end() if self.known is not None and last.key in self.vouched else None
            if end is not None and end.last_offset == last.last_offset:
                return resolution, end
            await self._open(last.key)

    async def _resolve(self) -> Resolution:
        unreadable: set[SegmentKey] = set()
        while True:
            damaged = [key for key in self.damaged if not key.generation and not self._came_late(key)]
            begun = [EpochStart(key.epoch, key.base_offset) for key in damaged]
            begun += self.begun
            resolution = resolve(self.segments.values(), self._histories(), begun=begun, decided=self.decided)
            for key in sorted(resolution.unread, key=_name):
                await self._open(key)
                break
            else:
                seemingly_late = {*resolution.late} - self.footers.keys() - unreadable
                if not seemingly_late:
                    return resolution
                for key in sorted(seemingly_late, key=_name):
                    if not await self._look_at_late(key):
                        unreadable.add(key)

    async def _look_at_late(self, key: SegmentKey) -> bool:
        """Read a seemingly late segment; False if it is unreadable, and late in any case.

        A segment that begins before all later epochs may be the last one before them: it is late only if it ends behind
        their begin. So it is examined like any other if damaged, and missed if gone. Raises NotFound.
        """
        if self._may_end_in_time(key):
            await self._open(key)
            return True
        try:
            footer = await read_footer(self.restorer.store, key)
        except (DamagedObject, NotFound):
            return False
        self._learn(key, footer)
        return True

    def _may_end_in_time(self, key: SegmentKey) -> bool:
        begins = [start.start_offset for start in self.begun if start.epoch > key.epoch]
        return bool(begins) and key.base_offset < min(begins) and not self._is_superseded(key)

    def _came_late(self, key: SegmentKey) -> bool:
        if key in self.decided.keys or key.epoch >= self.decided.epoch:
            return False
        decided = (self.segments[known].last_offset for known in self.decided.keys & self.segments.keys())
        return key.base_offset <= max(decided, default=-1)

    def _histories(self) -> Histories:
        histories = {key: footer.epochs for key, footer in self.footers.items()}
        end = None if self.known is None else self.known.end()
        if end is not None:
            last = [key for key, segment in self.segments.items() if segment.last_offset == end.last_offset]
            histories |= {key: end.epochs for key in last if key in self.vouched and key not in histories}
        return histories

    def _with_producers(self, segments: Iterable[Segment], last: Footer) -> Sequence[Segment]:
        if last.has_all_producers:
            return ()
        return [segment for segment in segments if last.producers_from <= segment.last_offset < last.last_offset]

    async def _open_all(self, keys: Iterable[SegmentKey]) -> bool:
        """Read footers that were not read yet; False if one is damaged."""
        wanted = [key for key in keys if key not in self.footers]
        await for_each(wanted, self._open, tasks_count=min(EARLIER_READS_MAX_COUNT, len(wanted)))
        return not any(key in self.damaged for key in wanted)

    # ---- what is lost -------------------------------------------------------------------------------------------

    def _end_offset(self, damaged: Quarantined) -> int:
        """Return the offset behind the last one that a damaged segment can have held."""
        key = damaged.key
        begins = [start.start_offset for start in self.begun if start.epoch > key.epoch]
        later = min((begin for begin in begins if begin > key.base_offset), default=OFFSET_MAX)
        if damaged.end_is_known or later < damaged.end_offset:
            return min(damaged.end_offset, later)
        if key in self.known_ends:
            return self.known_ends[key]
        following = None if key.generation else self.ends.get(key)
        return damaged.end_offset if following is None else following + 1

    def _what_is_read_instead(self, damaged: Quarantined, segments: Sequence[Segment]) -> str:
        first, end_offset = damaged.key.base_offset, self._end_offset(damaged)
        if any(segment.base_offset <= first <= segment.last_offset for segment in segments):
            return "the segments that it was made of are read instead, as far as they are there"
        which = f"offsets {first} to {end_offset - 1}"
        if not damaged.end_is_known and end_offset == damaged.end_offset:
            which = f"offsets from {first} on, up to an unknown one below {end_offset},"
        return f"{which} are lost, but for what the write-ahead log may have of them"
