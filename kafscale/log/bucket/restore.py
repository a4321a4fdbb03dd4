"""What the bucket holds at start: the segments of every partition, and what follows from the last footer of each.

The listing says what there is. The checkpoint of the manifests vouches for what it knows; of the rest are read: the
last footer of each partition, those of merged segments, those whose `.index` is missing, and those that the checkpoint
should know and does not.

A pair of which one half is missing is no obstacle: a `.kfs` is complete without its `.index`, which is written again
from the footer, also where it is that of another attempt; an `.index` without its `.kfs` is not looked at. Damaged
segments are rebuilt or quarantined (`kafscale.log.repair.quarantine`), and their sources are read where they still
exist.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter

import attrs
import trio

from kafscale.concurrency.nurseries import for_each
from kafscale.errors import DamagedObject, NewerVersion, StartupError
from kafscale.formats.footer_reading import index_goes_with, read_footer
from kafscale.formats.manifest import MAX_TIMESTAMP_UNKNOWN, Segment, resolve
from kafscale.formats.segment import Footer
from kafscale.log.bucket.listing import ListedSegment, PartitionId
from kafscale.log.flush.upload import segment_of
from kafscale.log.log_end import LogEnd
from kafscale.log.manifest_checkpoint import KnownPartition, ManifestCheckpoint, MissingSegment
from kafscale.log.repair.quarantine import Examiner, Quarantined
from kafscale.store.base import ObjectStore
from kafscale.store.paths import SegmentKey, topic_id_text

FOOTER_READS_MAX_COUNT = 256  # tasks; how many really run at once is the store's limiter's affair
PARTITIONS_PER_STEP_COUNT = 100  # restored without a look at the store; then others may run

logger = logging.getLogger(__name__)

_last_offset = attrgetter("last_offset")


@attrs.frozen(kw_only=True)
class RestoredPartition:
    """The segments to read, and the state after the last one; None if there is no segment.

    Below `lost_before`, offsets that no segment has may have been acknowledged. `quarantined` are not read; each has
    the last offset that it can have held.
    """

    segments: Sequence[Segment]
    end: LogEnd | None
    lost_before: int = 0
    quarantined: Mapping[SegmentKey, int] = attrs.field(factory=dict)


@attrs.define
class RestoreStatistics:
    """How far a start has come, and what it had to read."""

    listed_object_count: int = 0
    partition_count: int = 0
    restored_partition_count: int = 0
    vouched_segment_count: int = 0
    footer_read_count: int = 0
    missing_segment_count: int = 0
    seconds: float = 0.0  # all of it, but for the write-ahead log


@attrs.frozen(eq=False, kw_only=True)
class Restorer:
    """One start. `log_start_offset` tells that of a partition that is open."""

    store: ObjectStore
    examiner: Examiner
    checkpoint: ManifestCheckpoint
    log_start_offset: Callable[[PartitionId], int]
    statistics: RestoreStatistics = attrs.field(factory=RestoreStatistics)

    async def restore(
        self, listed: Mapping[PartitionId, Sequence[ListedSegment]], on_progress: Callable[[int], None]
    ) -> Mapping[PartitionId, RestoredPartition]:
        """All of these partitions, many at once. `on_progress` is told the number of partitions done.

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

    async def restore_partition(self, partition_id: PartitionId, listed: Sequence[ListedSegment]) -> RestoredPartition:
        """One of them; `listed` may be empty. Raises as `restore` does."""
        ordered = sorted(listed, key=lambda each: (each.key.base_offset, each.key.generation))
        work = _PartitionRestore(
            restorer=self,
            partition_id=partition_id,
            listed={each.key: each for each in ordered},
            known=self.checkpoint.get(partition_id),
            log_start_offset=self.log_start_offset(partition_id),
        )
        return await work.run()


@attrs.define(eq=False, kw_only=True)
class _PartitionRestore:
    """`segments` are those that are good as far as is known; the dictionaries are in order of offset."""

    restorer: Restorer
    partition_id: PartitionId
    listed: Mapping[SegmentKey, ListedSegment]
    known: KnownPartition | None
    log_start_offset: int
    segments: dict[SegmentKey, Segment] = attrs.field(factory=dict, init=False)
    footers: dict[SegmentKey, Footer] = attrs.field(factory=dict, init=False)
    known_ends: Mapping[SegmentKey, int] = attrs.field(factory=dict, init=False)  # offsets behind those that changed
    damaged: set[SegmentKey] = attrs.field(factory=set, init=False)
    quarantined: list[Quarantined] = attrs.field(factory=list, init=False)
    ends: Mapping[int, int] = attrs.field(init=False)  # by base offset, the last offset before the next base offset
    last_base_offset: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        base_offsets = sorted({key.base_offset for key in self.listed})
        self.ends = {base_offset: following - 1 for base_offset, following in pairwise(base_offsets)}
        self.last_base_offset = base_offsets[-1] if base_offsets else -1

    async def run(self) -> RestoredPartition:
        missing = self._recognise()
        for key in self._keys_to_open():
            await self._open(key)
        self._assume_ends()
        segments, end = await self._find_end()
        for each in self.quarantined:
            each.report(self._what_is_read_instead(each, segments))
        missing = [each for each in missing if self._is_lost(each)]
        self._report_missing(missing)
        return RestoredPartition(
            segments=segments,
            end=end,
            lost_before=max(
                [*(self._end_offset(each) for each in self.quarantined), *(each.last_offset + 1 for each in missing)],
                default=0,
            ),
            quarantined={each.key: self._end_offset(each) - 1 for each in self.quarantined},
        )

    # ---- what the checkpoint tells ------------------------------------------------------------------------------

    def _recognise(self) -> Sequence[MissingSegment]:
        if self.known is None:
            return ()
        recognised = self.known.recognise(self.listed.values())
        self.segments = {segment.key: segment for segment in recognised.segments}
        self.known_ends = {key: last_offset + 1 for key, last_offset in recognised.changed.items()}
        self.restorer.statistics.vouched_segment_count += len(recognised.segments)
        return recognised.missing

    def _is_lost(self, missing: MissingSegment) -> bool:
        """Or else deleted since, or merged."""
        return missing.last_offset >= self.log_start_offset and not any(map(missing.may_be_in, self._merged()))

    def _report_missing(self, missing: Sequence[MissingSegment]) -> None:
        self.restorer.statistics.missing_segment_count += len(missing)
        for each in missing:
            topic_id, partition = self.partition_id
            logger.error(
                "offsets %d to %d of partition %d of topic %s are missing: their segment has gone from the bucket",
                each.base_offset,
                each.last_offset,
                partition,
                next((key.topic for key in self.listed), topic_id_text(topic_id)),
            )

    # ---- what must be read --------------------------------------------------------------------------------------

    def _keys_to_open(self) -> Iterable[SegmentKey]:
        """Newer generations first: they tell what need not be looked at."""
        known_until = -1 if self.known is None else self.known.last_base_offset()
        by_generation = sorted(self.listed, key=lambda key: (-key.generation, key.base_offset))
        for key in by_generation:
            if key in self.segments:
                continue
            is_last = key.base_offset == self.last_base_offset
            if not key.generation and not is_last and self.ends[key.base_offset] < self.log_start_offset:
                continue  # nobody reads it, and retention deletes it
            should_be_known = key.base_offset <= known_until and not self._is_superseded(key)
            if key.generation or is_last or should_be_known or not self.listed[key].has_index:
                yield key

    def _is_superseded(self, key: SegmentKey) -> bool:
        """Whether a newer generation that is good has its first offset."""
        return any(
            segment.generation > key.generation and segment.base_offset <= key.base_offset <= segment.last_offset
            for segment in self._merged()
        )

    def _merged(self) -> Iterable[Segment]:
        return (segment for segment in self.segments.values() if segment.generation)

    async def _open(self, key: SegmentKey) -> None:
        footer = await self._read(key)
        if footer is None:
            self.damaged.add(key)
            self.segments.pop(key, None)
            return
        listed = self.listed[key]
        self.footers[key] = footer
        self.segments[key] = segment_of(key, footer, fingerprint=listed.fingerprint)
        # A flush that was killed can have left the .index of an earlier attempt, of other batches than the .kfs has.
        if not listed.has_index or not await index_goes_with(self.restorer.store, key, footer):
            await self.restorer.examiner.rebuild_index(key, footer)

    async def _read(self, key: SegmentKey) -> Footer | None:
        """None if it is damaged, and quarantined unless nobody needs it."""
        self.restorer.statistics.footer_read_count += 1
        try:
            return await read_footer(self.restorer.store, key)
        except NewerVersion as exc:
            raise StartupError(f"{exc}; start that version, or a newer one") from exc
        except DamagedObject as exc:
            if self._is_superseded(key):
                logger.info("%s: a newer generation is read instead", exc)
                return None
            found = await self.restorer.examiner.examine(key, exc, self._key_before(key))
        if isinstance(found, Footer):
            return found
        self.quarantined.append(found)
        return None

    def _key_before(self, key: SegmentKey) -> SegmentKey | None:
        before = [each for each in self.listed if each.base_offset < key.base_offset and each not in self.damaged]
        return max(before, key=lambda each: (each.base_offset, each.generation), default=None)

    def _assume_ends(self) -> None:
        """What a flush wrote ends before the next base offset of any generation, so its footer need not be read now."""
        for key, listed in self.listed.items():
            if key not in self.segments and key not in self.damaged:
                self.segments[key] = Segment(
                    key=key,
                    last_offset=self.ends[key.base_offset],
                    size_bytes=listed.object_size_bytes,
                    max_timestamp_ms=MAX_TIMESTAMP_UNKNOWN,
                    fingerprint=listed.fingerprint,
                )

    async def _find_end(self) -> tuple[Sequence[Segment], LogEnd | None]:
        """What is to be read, and the state after the last segment."""
        while segments := resolve(self.segments.values()):
            last = max(segments, key=_last_offset)
            if last.key in self.footers:
                return segments, LogEnd.of(self.footers[last.key])
            end = self.known.end() if self.known is not None else None
            if end is not None and end.last_offset == last.last_offset:
                return segments, end
            await self._open(last.key)
        return segments, None

    # ---- what is lost -------------------------------------------------------------------------------------------

    def _end_offset(self, damaged: Quarantined) -> int:
        """Behind the last offset that it can have held. What a flush wrote ends before the next base offset."""
        key = damaged.key
        if damaged.end_is_known:
            return damaged.end_offset
        if key in self.known_ends:
            return self.known_ends[key]
        following = None if key.generation else self.ends.get(key.base_offset)
        return damaged.end_offset if following is None else following + 1

    def _what_is_read_instead(self, damaged: Quarantined, segments: Sequence[Segment]) -> str:
        first, end_offset = damaged.key.base_offset, self._end_offset(damaged)
        if any(each.base_offset <= first <= each.last_offset for each in segments):
            return "the segments that it was made of are read instead, as far as they are there"
        which = f"offsets {first} to {end_offset - 1}"
        if not damaged.end_is_known and end_offset == damaged.end_offset:
            which = f"offsets from {first} on, nobody knows how far, but below {end_offset},"
        return f"{which} are lost, but for what the write-ahead log may have of them"
