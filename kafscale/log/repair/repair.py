"""Rebuild damaged segments, and quarantine those that can't be rebuilt: docs/discussion/rooms/log.md ("Damage").

Batches are never changed, left out or made up: a rewritten `.kfs` has the same ones at the same place, and is checked
before it is written. Writes are conditional on what was read. A segment is read again before and after its repair,
since replies of the store may arrive damaged. Acknowledged offsets are never given out again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.errors import DamagedObject, NewerVersion, NotFound, PreconditionFailed, StoreUnavailable
from kafscale.formats import segment, segment_v1
from kafscale.formats.footer_reading import index_of, read_footer, read_index
from kafscale.formats.manifest import Segment
from kafscale.formats.segment import HEADER, EpochStart, Footer, Identity, build_footer
from kafscale.formats.segment_check import BodyCheck
from kafscale.formats.segment_v1 import read_exact_footer_v1
from kafscale.log.partition.partition import Partition
from kafscale.log.partition.producers import ProducerStates
from kafscale.log.repair.verify_segment import CheckedSegment, FindingKind, check_segment
from kafscale.metrics import Counter, Metrics
from kafscale.store.base import ObjectStore
from kafscale.store.paths import EPOCH_UNKNOWN, OFFSET_MAX, SegmentKey
from kafscale.wire.batch_header import BatchHeader, batches, parse_header

logger = logging.getLogger(__name__)


def footer_of_batches(key: SegmentKey, body: memoryview, before: Footer | None, created_ms: int) -> Footer:
    """Make the footer of these batches, which follow a segment with the footer `before`. Raises KafkaError."""
    found = [(parse_header(batch), batch) for batch in batches(body)]
    headers = [header for header, _ in found]
    epochs = [] if before is None else list(before.epochs)
    for header in headers:
        if header.leader_epoch >= 0 and (not epochs or epochs[-1].epoch != header.leader_epoch):
            epochs.append(EpochStart(header.leader_epoch, header.base_offset))
    identity = Identity(
        topic_id=key.topic_id,
        partition=key.partition,
        base_offset=key.base_offset,
        generation=key.generation,
        leader_epoch=max(header.leader_epoch for header in headers) if key.epoch == EPOCH_UNKNOWN else key.epoch,
        created_ms=created_ms,
        batch_count=len(headers),
        body_bytes=len(body),
        max_timestamp_ms=max(header.max_timestamp_ms for header in headers),
        body_crc=segment.body_crc([body]),
    )
    states = _replay(found, before)
    end_offset = headers[-1].next_offset
    return build_footer(
        identity,
        headers,
        producers=states.snapshot(end_offset),
        producers_from=None if before is None or before.has_all_producers else before.producers_from,
        epochs=epochs,
        aborted=states.transactions.aborted_by_markers(key.base_offset, end_offset),
        open_transactions=states.transactions.open_at(end_offset),
        marker_offsets=[header.base_offset for header in headers if header.is_control],
    )


def _replay(found: Iterable[tuple[BatchHeader, memoryview]], before: Footer | None) -> ProducerStates:
    states = ProducerStates()
    if before is not None:
        states.restore(before.producers)
        states.transactions.restore(before.open_transactions)
    for header, batch in found:
        if header.has_producer_id and (header.is_transactional or not header.is_control):
            base_offset = header.base_offset
            states.take(header, batch, base_offset, header.max_timestamp_ms, durable_before=base_offset)
    return states


def _trailer_of(body: memoryview) -> bytes:
    last_offset = max(parse_header(batch).last_offset for batch in batches(body))
    return segment_v1.encode_trailer(segment_v1.Trailer(segment.body_crc([body]), last_offset))


def _prove(footer: Footer, body: memoryview, key: SegmentKey) -> None:
    check = BodyCheck(
        footer=footer, base_offset=key.base_offset, end=HEADER.size + len(body), merged=key.generation > 0
    )
    check.feed(body)
    check.finish()
    if check.damage or footer.end_position != check.end:
        raise DamagedObject(f"{key.key}: the batches have changed since they were read")


# More than a segment can hold: 64 MiB would have a quarter of a bit for each record.
UNKNOWN_END_GAP = 1 << 31
LOOKS_MAX_COUNT = 5  # at one segment, as long as each finds something else


@attrs.frozen(kw_only=True)
class Quarantined:
    """A segment that is not read. `end_offset` is behind the last offset that it can have held."""

    key: SegmentKey
    reason: str
    end_offset: int
    end_is_known: bool

    def report(self, instead: str) -> None:
        logger.error("%s is damaged and quarantined: %s; %s", self.key.key, self.reason, instead)


@attrs.define(eq=False, kw_only=True, repr=False)
class Examiner:
    """Examines damaged segments. `store` is the view of a start and of fetches, which wait for it."""

    store: ObjectStore
    rebuilt_segment_count: Counter = attrs.field(factory=Counter, init=False)
    rebuilt_index_count: Counter = attrs.field(factory=Counter, init=False)
    _under_way: dict[SegmentKey, trio.Event] = attrs.field(factory=dict, init=False)

    def register(self, metrics: Metrics) -> None:
        metrics.counts(
            "kafscale_rebuilt_objects_total",
            "Damaged or missing objects of segments rebuilt from intact ones, by kind.",
            "kind",
            lambda: {"kfs": self.rebuilt_segment_count.value, "index": self.rebuilt_index_count.value},
        )

    async def examine(
        self, key: SegmentKey, damage: DamagedObject, previous: SegmentKey | None
    ) -> Footer | Quarantined:
        """Read a segment and rebuild it if possible. Returns its footer if it is whole then.

        Producers and leader epochs of a new footer continue those of the segment `previous`. Raises NotFound,
        StoreError; StoreUnavailable if each read finds other damage.
        """
        before: tuple[Quarantined, Sequence[tuple[FindingKind, str, str]]] | None = None
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
        key = checked.key
        if any(finding.can_repair for finding in checked.findings):
            await self.repair_segment(checked, previous)
        try:
            footer = await read_footer(self.store, key)
        except DamagedObject as exc:
            return await self._quarantined(checked, exc)
        if any(finding.repaired and finding.kind is not FindingKind.INDEX for finding in checked.findings):
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
        """Write the `.index` of a whole `.kfs`. Raises StoreError."""
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

    # ---- rebuilding ---------------------------------------------------------------------------------------------

    async def repair_segment(self, checked: CheckedSegment, previous: SegmentKey | None) -> None:
        """Rebuild what can be, and mark those findings as repaired. Raises StoreError."""
        try:
            after = await check_segment(self.store, checked.key)
            if after.damage != checked.damage:
                logger.warning("%s: not repaired: it comes damaged in another way each time", checked.key.key)
                return
            if any(
                found.kind in (FindingKind.FOOTER, FindingKind.HEADER) and found.can_repair for found in after.findings
            ):
                await self._rewrite_kfs(after, previous)
                after = await check_segment(self.store, checked.key)
            if any(found.kind is FindingKind.INDEX and found.can_repair for found in after.findings):
                await self._rewrite_index(checked.key)
                after = await check_segment(self.store, checked.key)
        except (PreconditionFailed, NotFound, DamagedObject) as exc:
            logger.warning("%s: not repaired: %s", checked.key.key, exc)
            return
        left = {(found.name, found.kind) for found in after.findings}
        for finding in checked.findings:
            finding.repaired = finding.can_repair and (finding.name, finding.kind) not in left

    async def remove_orphan(self, key: SegmentKey) -> bool:
        """Delete an `.index` unless its `.kfs` has appeared. Raises StoreError."""
        with suppress(NotFound):
            await self.store.head(key.of_kind("kfs").key)
            return False
        await self.store.delete([key.key])
        return True

    async def _rewrite_kfs(self, checked: CheckedSegment, previous: SegmentKey | None) -> None:
        key = checked.key
        part = await self.store.get(key.key)
        body = memoryview(part.data)[HEADER.size : checked.batches_end]
        if key.version == segment_v1.VERSION:
            head, tail = bytes(part.data[: HEADER.size]), await trio.to_thread.run_sync(_trailer_of, body)
        else:
            footer = checked.footer or await self._make_footer(checked, part.data, body, previous)
            _prove(footer, body, key)
            head, tail = segment.encode_header(footer), checked.footer_bytes or segment.encode_footer(footer)
            if checked.footer is None:
                await self._write_index(key, tail)  # first: who is interrupted in between finds the footer there
        await self.store.put_if_match(key.key, [head, body, tail], part.etag)

    async def _make_footer(
        self, checked: CheckedSegment, data: Buffer, body: memoryview, previous: SegmentKey | None
    ) -> Footer:
        """Make the footer from the batches, and the producers and epochs before them."""
        before = None
        if previous is not None:
            with suppress(DamagedObject, NotFound):
                before = await read_footer(self.store, previous)
        created_ms = segment.HEADER.unpack_from(data)[5]
        return await trio.to_thread.run_sync(footer_of_batches, checked.key, body, before, created_ms)

    async def _rewrite_index(self, key: SegmentKey) -> None:
        footer = await read_footer(self.store, key)
        if footer.version == segment_v1.VERSION:
            footer = await read_exact_footer_v1(self.store, key)
        await self._write_index(key, await index_of(self.store, key, footer))

    async def _write_index(self, key: SegmentKey, encoded: Buffer) -> None:
        index_key = key.of_kind("index").key
        try:
            part = await self.store.get(index_key)
        except NotFound:
            await self.store.put_if_absent(index_key, [encoded])
        else:
            if part.data != encoded:
                await self.store.put_if_match(index_key, [encoded], part.etag)


def _without_name(damage: DamagedObject, key: SegmentKey) -> str:
    return str(damage).removeprefix(f"{key.key}: ")
