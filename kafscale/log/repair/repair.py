"""Rebuilding what `verify_segment` found that can be rebuilt.

Batches are never changed, left out or made up: a `.kfs` that is written again has the same ones at the same place, and
is checked in memory before it is written. Writes are conditional on what was read, so whatever else writes meanwhile
wins. A segment is read again before its repair, as replies of the store may have come damaged, and after it: it is
repaired only if nothing is wrong with it then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress

import attrs
import trio

from kafscale.buffers import Buffer
from kafscale.errors import DamagedObject, NotFound, PreconditionFailed
from kafscale.formats import segment, segment_v1
from kafscale.formats.footer_reading import index_of, read_footer
from kafscale.formats.segment import HEADER, EpochStart, Footer, Identity, build_footer
from kafscale.formats.segment_check import BodyCheck
from kafscale.formats.segment_v1 import read_exact_footer_v1
from kafscale.log.partition.applying import take_transactional
from kafscale.log.partition.producers import ProducerStates
from kafscale.log.partition.transactions import Transactions
from kafscale.log.repair.findings import Kind
from kafscale.log.repair.verify_segment import CheckedSegment, check_segment
from kafscale.store.base import ObjectStore
from kafscale.store.paths import EPOCH_UNKNOWN, SegmentKey
from kafscale.wire.batch_header import BatchHeader, batches, parse_header

logger = logging.getLogger(__name__)


@attrs.frozen(eq=False, repr=False)
class Repairer:
    """Repairs one object at a time; a `.kfs` is in memory then."""

    store: ObjectStore

    async def repair_segment(self, checked: CheckedSegment, previous: SegmentKey | None) -> None:
        """Rebuild what can be, and mark those findings as repaired. `previous` ends where this one begins.

        Raises StoreError.
        """
        try:
            after = await check_segment(self.store, checked.key)
            if after.damage != checked.damage:
                logger.warning("%s: not repaired: it comes damaged in another way each time", checked.key.key)
                return
            if any(found.kind in (Kind.FOOTER, Kind.HEADER) and found.can_repair for found in after.findings):
                await self._rewrite_kfs(after, previous)
                after = await check_segment(self.store, checked.key)
            if any(found.kind is Kind.INDEX and found.can_repair for found in after.findings):
                await self._rewrite_index(checked.key)
                after = await check_segment(self.store, checked.key)
        except (PreconditionFailed, NotFound, DamagedObject) as exc:
            logger.warning("%s: not repaired: %s", checked.key.key, exc)
            return
        left = {(found.name, found.kind) for found in after.findings}
        for finding in checked.findings:
            finding.repaired = finding.can_repair and (finding.name, finding.kind) not in left

    async def remove_orphan(self, key: SegmentKey) -> bool:
        """Delete an `.index` unless its `.kfs` is there by now. Raises StoreError."""
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
        """Make the footer anew from the batches, and from where producers and epochs stood before them."""
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


def footer_of_batches(key: SegmentKey, body: memoryview, before: Footer | None, created_ms: int) -> Footer:
    """The footer of a segment that has these batches, after a segment with the footer `before`. Raises KafkaError."""
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
    states, transactions = _replay(found, before)
    end_offset = headers[-1].next_offset
    return build_footer(
        identity,
        headers,
        producers=states.snapshot(end_offset),
        producers_from=None if before is None or before.has_all_producers else before.producers_from,
        epochs=epochs,
        aborted=transactions.aborted_by_markers(key.base_offset, end_offset),
        open_transactions=transactions.open_at(end_offset),
        marker_offsets=[header.base_offset for header in headers if header.is_control],
    )


def _replay(
    found: Iterable[tuple[BatchHeader, memoryview]], before: Footer | None
) -> tuple[ProducerStates, Transactions]:
    """Return the state after these batches, of which each begins where the one before it ends."""
    states, transactions = ProducerStates(), Transactions()
    if before is not None:
        states.restore(before.producers)
        transactions.restore(before.open_transactions)
    for header, batch in found:
        base_offset, now_ms = header.base_offset, header.max_timestamp_ms
        if header.is_transactional and header.has_producer_id:
            take_transactional(
                states,
                transactions,
                header,
                batch,
                base_offset=base_offset,
                now_ms=now_ms,
                durable_before=base_offset,
            )
        elif header.has_producer_id and not header.is_control:
            states.record(header, base_offset, now_ms, durable_before=base_offset)
    return states, transactions


def _trailer_of(body: memoryview) -> bytes:
    last_offset = max(parse_header(batch).last_offset for batch in batches(body))
    return segment_v1.encode_trailer(segment_v1.Trailer(segment.body_crc([body]), last_offset))


def _prove(footer: Footer, body: memoryview, key: SegmentKey) -> None:
    """Raises DamagedObject unless the batches are what the footer says."""
    check = BodyCheck(
        footer=footer, base_offset=key.base_offset, end=HEADER.size + len(body), merged=key.generation > 0
    )
    check.feed(body)
    check.finish()
    if check.damage or footer.end_position != check.end:
        raise DamagedObject(f"{key.key}: the batches have changed since they were read")
