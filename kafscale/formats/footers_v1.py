"""Footers of version 1 segments, from header, trailer and `.index`, or from all batches where that is not enough."""

from __future__ import annotations

from contextlib import aclosing

from kafscale.errors import DamagedObject, KafkaError, NotFound
from kafscale.formats import segment_v1
from kafscale.formats.body import BatchSplitter, read_pieces
from kafscale.formats.segment import HEADER, Footer
from kafscale.formats.segment_v1 import Ends
from kafscale.store.base import ObjectPart, ObjectStore
from kafscale.store.paths import SegmentKey
from kafscale.wire.records import BatchHeader, parse_header


async def read_footer_v1(store: ObjectStore, key: SegmentKey, tail: ObjectPart) -> Footer:
    """The footer of the `.kfs` whose last bytes are `tail`: two small GETs, unless its `.index` is of no use.

    Timestamps are unknown but for an object that is in `tail` wholly. Raises NotFound, DamagedObject, StoreError.
    """
    if len(tail.data) == tail.object_size_bytes:
        ends = segment_v1.decode_ends(key, tail.data, tail.data, tail.object_size_bytes)
        body = memoryview(tail.data)[HEADER.size : HEADER.size + ends.body_bytes]
        splitter = _splitter(ends)
        try:
            headers = [parse_header(batch.data) for batch in splitter.feed(body)]
            splitter.finish()
        except KafkaError as exc:
            raise DamagedObject(f"{key.key}: the batch at byte {splitter.position}: {exc}") from exc
        return segment_v1.footer_from_batches(ends, headers)
    head = await store.get_range(key.key, 0, HEADER.size)
    ends = segment_v1.decode_ends(key, head.data, tail.data, tail.object_size_bytes)
    index_key = key.of_kind("index").key
    try:
        entries = segment_v1.decode_index((await store.get(index_key)).data, index_key)
        return segment_v1.footer_from_index(ends, entries)
    except (NotFound, DamagedObject):
        return await _read_batches(store, ends)


async def read_exact_footer_v1(store: ObjectStore, key: SegmentKey) -> Footer:
    """A footer with timestamps, for which the whole object is read. Raises NotFound, DamagedObject, StoreError."""
    tail = await store.get_tail(key.key, segment_v1.TRAILER.size)
    head = await store.get_range(key.key, 0, HEADER.size)
    return await _read_batches(store, segment_v1.decode_ends(key, head.data, tail.data, tail.object_size_bytes))


async def _read_batches(store: ObjectStore, ends: Ends) -> Footer:
    key, headers = ends.key.key, list[BatchHeader]()
    splitter = _splitter(ends)
    try:
        async with aclosing(read_pieces(store, key, splitter.position, splitter.end)) as pieces:
            async for piece in pieces:
                headers += [parse_header(batch.data) for batch in splitter.feed(piece)]
        splitter.finish()
    except KafkaError as exc:
        raise DamagedObject(f"{key}: the batch at byte {splitter.position}: {exc}") from exc
    return segment_v1.footer_from_batches(ends, headers)


def _splitter(ends: Ends) -> BatchSplitter:
    return BatchSplitter(HEADER.size, HEADER.size + ends.body_bytes)
