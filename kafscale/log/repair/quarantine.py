"""Segments that can't be read: rebuilt if everything that they held is there, and set aside otherwise.

A footer that is lost is made again from the `.index`, or from the batches where the header says that they are all
there; see `kafscale.log.repair.repair`. What can't be rebuilt is quarantined: the object stays where it is, nothing is
deleted, moved or written over, and no reader uses it. Consumers go on at the next offset that there is, as behind a
range that was compacted away. Each is told once in a start by a line in the log, is counted by
`kafscale_quarantined_segments`, and is reported by `kafscale verify`.

What is damaged in the bucket is damaged in the same way whenever one looks, so only what two looks in a row find alike
is quarantined. Otherwise replies of the store have come damaged, and a sound segment must not be left out for that.

A segment whose footer is whole is not quarantined for a batch that is damaged: the others are served, and a fetch of
that one is refused.

Offsets that may have been acknowledged are never given out again. So where a quarantined segment is the last one, the
log goes on behind the last offset that it can have held. That is told by its `.index`, by the checkpoint of the
manifests, or by what comes behind it in the write-ahead log; in version 1 by its header. If nothing tells it, the log
goes on UNKNOWN_END_GAP behind the base offset.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import attrs
import trio

from kafscale.errors import DamagedObject, NewerVersion, NotFound, StoreUnavailable
from kafscale.formats import segment_v1
from kafscale.formats.footer_reading import index_of, read_footer, read_index
from kafscale.formats.manifest import Segment
from kafscale.formats.segment import HEADER, Footer
from kafscale.log.partition.partition import Partition
from kafscale.log.repair.findings import Kind
from kafscale.log.repair.repair import Repairer
from kafscale.log.repair.verify_segment import CheckedSegment, check_segment
from kafscale.metrics import Counter, Metrics
from kafscale.store.base import ObjectStore
from kafscale.store.paths import OFFSET_MAX, SegmentKey

# More than a segment can hold: 64 MiB would have a quarter of a bit for each record.
UNKNOWN_END_GAP = 1 << 31
LOOKS_MAX_COUNT = 5  # at one segment, as long as each finds something else

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Quarantined:
    """A segment that is not read. `end_offset` is behind the last one that it can have held."""

    key: SegmentKey
    reason: str
    end_offset: int
    end_is_known: bool

    def report(self, instead: str) -> None:
        """Tell the operator, and what is done `instead`."""
        logger.error("%s is damaged and quarantined: %s; %s", self.key.key, self.reason, instead)


@attrs.define(eq=False, kw_only=True, repr=False)
class Examiner:
    """Looks closely at damaged segments. `store` is the view of those who wait for it: a start, and fetches."""

    store: ObjectStore
    rebuilt_segment_count: Counter = attrs.field(factory=Counter, init=False)
    rebuilt_index_count: Counter = attrs.field(factory=Counter, init=False)
    _under_way: dict[SegmentKey, trio.Event] = attrs.field(factory=dict, init=False)

    def register(self, metrics: Metrics) -> None:
        """Register the metrics."""
        metrics.counts(
            "kafscale_rebuilt_objects_total",
            "Damaged or missing objects of segments that were rebuilt from intact ones.",
            "kind",
            lambda: {"kfs": self.rebuilt_segment_count.value, "index": self.rebuilt_index_count.value},
        )

    async def examine(
        self, key: SegmentKey, damage: DamagedObject, previous: SegmentKey | None
    ) -> Footer | Quarantined:
        """Read all of it, and rebuild what can be; the footer if the segment is whole then.

        `previous` is the segment before it, from whose producers and leader epochs those of a new footer follow.
        Raises NotFound, StoreError; StoreUnavailable if it seems to be damaged in another way each time.
        """
        before: tuple[Quarantined, Sequence[tuple[Kind, str, str]]] | None = None
        for _ in range(LOOKS_MAX_COUNT):
            checked = await check_segment(self.store, key)
            if checked.gone:
                raise NotFound(key.key)
            found = await self._footer(checked, damage, previous)
            if isinstance(found, Footer):
                return found
            seen = found, checked.damage
            if seen == before and checked.damage:  # otherwise it was whole a moment before its footer was not
                return found
            before = seen
        raise StoreUnavailable(f"{key.key} comes damaged in another way each time that it is read") from damage

    async def _footer(
        self, checked: CheckedSegment, damage: DamagedObject, previous: SegmentKey | None
    ) -> Footer | Quarantined:
        """Rebuild what can be, and read the footer."""
        key = checked.key
        if any(finding.can_repair for finding in checked.findings):
            await Repairer(self.store).repair_segment(checked, previous)
        try:
            footer = await read_footer(self.store, key)
        except DamagedObject as exc:
            return await self._quarantined(checked, exc)
        if any(finding.repaired and finding.kind is not Kind.INDEX for finding in checked.findings):
            self.rebuilt_segment_count.value += 1
            logger.warning("%s was damaged and has been rebuilt: %s", key.key, _without_name(damage, key))
        return footer

    async def _quarantined(self, checked: CheckedSegment, damage: DamagedObject) -> Quarantined:
        key = checked.key
        known = await self._told_end(checked)
        readable = key.base_offset if checked.last_offset is None else checked.last_offset + 1
        unknown = min(key.base_offset + UNKNOWN_END_GAP, OFFSET_MAX)
        return Quarantined(
            key=key,
            reason=_without_name(damage, key),
            end_offset=max(readable, unknown if known is None else known),
            end_is_known=known is not None,
        )

    async def _told_end(self, checked: CheckedSegment) -> int | None:
        key = checked.key
        if key.version == segment_v1.VERSION:
            try:
                head = (await self.store.get_range(key.key, 0, HEADER.size)).data if checked.size_bytes else b""
                header = segment_v1.decode_header(head, key.key)
            except DamagedObject:
                return None
            return key.base_offset + header.record_count if header.base_offset == key.base_offset else None
        if checked.footer is not None:
            return checked.footer.last_offset + 1
        footer = await read_index(self.store, key)
        return None if footer is None else footer.last_offset + 1

    async def rebuild_index(self, key: SegmentKey, footer: Footer) -> None:
        """Write the `.index` again that goes with a whole `.kfs`. Raises StoreError."""
        logger.warning("%s has no .index that goes with it; writing it again", key.key)
        await self.store.put(key.of_kind("index").key, [await index_of(self.store, key, footer)])
        self.rebuilt_index_count.value += 1

    async def settle(self, partition: Partition, segment: Segment, damage: DamagedObject) -> None:
        """Rebuild a segment in which a reader met damage, or take it out of the manifest.

        Raises `damage` again if the segment is whole: it was damaged on its way, or is of a newer version. Raises
        NotFound, StoreError.
        """
        if isinstance(damage, NewerVersion):
            raise damage
        under_way = self._under_way.get(segment.key)
        if under_way is not None:
            await under_way.wait()
            return
        done = self._under_way[segment.key] = trio.Event()
        rebuilt_before = self.rebuilt_segment_count.value
        try:
            found = await self.examine(segment.key, damage, partition.manifest.key_before(segment.base_offset))
            if isinstance(found, Quarantined):
                if partition.quarantine(segment):
                    found.report(f"consumers of {partition} go on behind offset {segment.last_offset}")
            elif self.rebuilt_segment_count.value == rebuilt_before:
                raise damage
        finally:
            del self._under_way[segment.key]
            done.set()


def _without_name(damage: DamagedObject, key: SegmentKey) -> str:
    return str(damage).removeprefix(f"{key.key}: ")
