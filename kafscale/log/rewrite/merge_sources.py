"""What a merged segment is made of: its sources, each read by one GET and checked, and the footer for all of them.

A source of either version is checked against its footer, batch by batch, before its batches are written anew: once they
are, its own objects go.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import attrs
import trio

from kafscale.buffers import Buffer, size_of, slices_of
from kafscale.errors import DamagedObject
from kafscale.formats import segment_v1
from kafscale.formats.body import LocatedBatch
from kafscale.formats.footer_reading import decode_end
from kafscale.formats.manifest import Segment
from kafscale.formats.producers import Producer
from kafscale.formats.segment import HEADER, INDEX_ROWS_MAX_COUNT, Footer, Identity, Index, rows_of
from kafscale.formats.segment_check import BodyCheck
from kafscale.log.flush.upload import crc_of
from kafscale.log.partition.partition import Partition
from kafscale.store.base import ObjectStore
from kafscale.store.paths import SegmentKey
from kafscale.wire.records import BatchHeader

SLICE_BYTES = 64 << 10  # checked at once: a quarter of a millisecond for batches of 1 KiB; then others may run


@attrs.frozen(eq=False, repr=False)
class Source:
    """A segment in memory. `footer` has the timestamps and batches of version 1, too."""

    footer: Footer
    body: memoryview


@attrs.frozen
class _Span:
    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    min_timestamp_ms: int
    size_bytes: int


async def read_source(store: ObjectStore, segment: Segment) -> Source:
    """Raises NotFound, DamagedObject, StoreError."""
    key = segment.key
    data = memoryview((await store.get(key.key)).data)
    if not segment_v1.is_version_1(data):
        footer = decode_end(data, len(data), key)
        body = data[HEADER.size : footer.end_position]
        await _check(key, footer, body, [])
        return Source(footer, body)
    ends = segment_v1.decode_ends(key, data, data, len(data))
    body = data[HEADER.size : HEADER.size + ends.body_bytes]
    spans: list[_Span] = []
    await _check(key, segment_v1.footer_without_index(ends), body, spans)
    return Source(await trio.to_thread.run_sync(segment_v1.footer_from_batches, ends, spans), body)


async def _check(key: SegmentKey, footer: Footer, body: memoryview, spans: list[_Span]) -> None:
    """Raise DamagedObject unless the batches are what the footer says. `spans` gets those of version 1."""

    def take(header: BatchHeader, _batch: LocatedBatch) -> None:
        latest_ms, earliest_ms = header.max_timestamp_ms, header.min_timestamp_ms
        spans.append(_Span(header.base_offset, header.last_offset, latest_ms, earliest_ms, header.size_bytes))

    check = BodyCheck(
        footer=footer,
        base_offset=key.base_offset,
        end=footer.end_position,
        merged=key.generation > 0,
        on_batch=take if footer.version == segment_v1.VERSION else None,
    )
    for part in slices_of(body, SLICE_BYTES):
        check.feed(part)
        await trio.lowlevel.checkpoint()
    check.finish()
    if check.damage:
        raise DamagedObject(f"{key.key}: {check.damage[0]}")


async def merged_footer(partition: Partition, sources: Sequence[Source]) -> Footer:
    """The footer of a segment with the batches of all sources, in this order. Its generation is still to be given."""
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
        aborted=tuple(each for footer in footers for each in footer.aborted),
        open_transactions=last.open_transactions,
        marker_rows=_merged_marker_rows(footers, index),
    )


def producers_of(partition: Partition, footers: Sequence[Footer]) -> Sequence[Producer]:
    """Return what the footer of a segment that takes the place of these, in order of offset, is to hold.

    A later footer has the others that are needed still, and nobody needs those that were forgotten.
    """
    latest = {each.producer_id: each for footer in footers for each in footer.producers}
    first_offset, last_offset = footers[0].identity.base_offset, footers[-1].last_offset
    return partition.producers.still_needed(latest.values(), first_offset, last_offset)


def _merged_marker_rows(footers: Sequence[Footer], index: Index) -> tuple[int, ...] | None:
    """Return the rows that have one of their rows with markers, unless one of them does not tell which these are."""
    offsets: list[int] = []
    for footer in footers:
        if footer.marker_rows is None:
            return None
        offsets += [footer.row_offset(row) for row in footer.marker_rows]
    return rows_of(index, offsets)


async def _merged_index(footers: Sequence[Footer], body_bytes: int) -> Index:
    """All rows of all sources, or where they are too many, as many of them in one as make ~size/1024 bytes."""
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
