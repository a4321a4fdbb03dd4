"""Merges small segments in the background: which ones is in `merge_plan`, how in `rewriting`.

One task, one merge at a time in the whole broker. It looks at a partition when that got a segment or was compacted, so
an idle broker does nothing, and goes first to where one merge takes away most objects; who waits gets more of them. A
merge holds its sources in memory: the target size, and their footers.

While producers fill the chunk pool as fast as flushes empty it, only merges that take away as many objects as pay for
themselves are made: in front of two halves of a segment, producers go first.

A source that is damaged or missing is reported once, and left alone from then on; its neighbours are merged without it.
When the store fails, all merging pauses: the sources stay as they are.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from weakref import WeakKeyDictionary

import attrs
import trio

from kafscale.concurrency.nurseries import for_each
from kafscale.concurrency.signals import Signal
from kafscale.errors import DamagedObject, NotFound, StoreError
from kafscale.formats.manifest import Segment
from kafscale.log.partition.partition import Partition
from kafscale.log.rewrite.merge_plan import MERGE_FACTOR, find_sources
from kafscale.log.rewrite.merge_sources import Source, merged_footer, read_source
from kafscale.log.rewrite.rewriting import Rewriter
from kafscale.metrics import Counter, Metrics
from kafscale.store.paths import SegmentKey

logger = logging.getLogger(__name__)

GETS_AT_ONCE_COUNT = 4
FAILED_MERGE_PAUSE_SECONDS = 60.0  # the store has been retried before; nobody waits for a merge
PRESSED_PAUSE_SECONDS = 1.0
LOOKED_AT_MAX_COUNT = 2000  # segments; then others may run

_base_offset = attrgetter("base_offset")
_last_offset = attrgetter("last_offset")


@attrs.define(eq=False, kw_only=True, repr=False)
class Merger:
    """Merges segments to about `target_bytes`; none if that is 0.

    `is_pressed` says whether producers need what the store and the disk can take.
    """

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
        """Show merges to whoever scrapes."""
        count = metrics.adopt_counter
        count("kafscale_merges_total", "Merges of small segments into a larger one.", self.merges_count)
        count("kafscale_merged_segments_total", "Segments that they were made of.", self.sources_count)
        count("kafscale_merged_bytes_total", "Record batches in these segments.", self.merged_bytes)
        help = "Merges that are tried again, and segments that can't be merged."
        count("kafscale_merge_failures_total", help, self.failed_count)

    def note(self, partition: Partition) -> None:
        """The partition has got a segment: `Partition.on_flushed`."""
        if self.target_bytes:
            self._changed[partition] = None
            self._wake.set()

    def forget(self, partition: Partition) -> None:
        """The partition is closed."""
        self._changed.pop(partition, None)
        self._worthwhile.pop(partition, None)

    def _note_rewritten(self, partition: Partition) -> None:
        """Compaction has been there: any of its segments may be smaller than it was."""
        self._settled.pop(partition, None)
        self.note(partition)

    async def run(self, partitions: Iterable[Partition]) -> None:
        """Merge what is there already and what comes, until cancelled. Raises Fenced."""
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
        """Find out what is to be gained in the partitions that have changed."""
        while self._changed:
            partition, _ = self._changed.popitem()
            self._worthwhile.pop(partition, None)
            sources = await self._sources_of(partition)
            if sources and not partition.is_leaving:
                self._worthwhile[partition] = len(sources)
            await trio.lowlevel.checkpoint()

    async def _sources_of(self, partition: Partition) -> Sequence[Segment]:
        """Return what to merge next; under pressure, what takes away many objects, if there is such a group."""
        if self.is_pressed():
            sources = await self._first_group(partition, MERGE_FACTOR)
            if sources:
                return sources
        return await self._first_group(partition, 2)

    async def _first_group(self, partition: Partition, least_count: int) -> Sequence[Segment]:
        """The first group to merge; which beginning of the log is not worth another look is remembered."""
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
        """All sources, in order; fewer if some can't be merged."""
        sources: dict[SegmentKey, Source] = {}

        async def read(segment: Segment) -> None:
            try:
                sources[segment.key] = await self._read_source(segment)
            except (NotFound, DamagedObject) as exc:
                self._exclude(partition, segment, exc)

        await for_each(segments, read, tasks_count=GETS_AT_ONCE_COUNT)
        return [sources[segment.key] for segment in segments if segment.key in sources]

    async def _read_source(self, segment: Segment) -> Source:
        """Read a source; once more if it comes damaged, as that may have happened on its way."""
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
