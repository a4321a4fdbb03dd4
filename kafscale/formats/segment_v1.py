"""The segment format, version 1, of KafScale's Go broker: read, and its `.index` written again. Sans-IO. Big-endian.

    .kfs   = header | record batches | trailer

    header   32 bytes   "KAFS" | u16 version = 1 | u16 flags = 0 | i64 base offset | i32 record count | i64 created ms
                        | u32 0
    trailer  16 bytes   u32 CRC-32C of the batches | i64 last offset | "END!"

    .index = header | entries                                  (sparse: an entry per `interval` records or more)

    header   16 bytes   "IDX\\0" | u16 version = 1 | i32 entry count | i32 interval | u16 0
    entry    12 bytes   i64 base offset of a batch | i32 its position, from the start of the .kfs

No topic, no timestamps, no producers, no leader epochs. What this module makes of it is a `Footer` as version 2 has
one, so that readers need not know. The timestamps in it are unknown unless all batches were looked at: then any
timestamp may be in there (`MAX_TIMESTAMP_UNKNOWN`).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from contextlib import aclosing

import attrs

from kafscale.buffers import Buffer
from kafscale.errors import DamagedObject, KafkaError, NotFound
from kafscale.formats.body import BatchSplitter, read_pieces
from kafscale.formats.manifest import MAX_TIMESTAMP_UNKNOWN
from kafscale.formats.segment import (
    HEADER,
    HEADER_MAGIC,
    Footer,
    Identity,
    Index,
    IndexedBatch,
    build_footer,
    check_index_order,
)
from kafscale.store.base import ObjectPart, ObjectStore
from kafscale.store.paths import SegmentKey
from kafscale.wire.batch_header import BatchHeader, parse_header

VERSION = 1
TRAILER = struct.Struct(">Iq4s")
TRAILER_MAGIC = b"END!"
INDEX_HEADER = struct.Struct(">4sHiiH")
INDEX_MAGIC = b"IDX\0"
INDEX_ENTRY = struct.Struct(">qi")
INDEX_INTERVAL = 1  # of an .index that is written again: an entry per batch, or per row where there are very many


@attrs.frozen
class Header:
    base_offset: int
    record_count: int
    created_ms: int


@attrs.frozen
class Trailer:
    body_crc: int
    last_offset: int


@attrs.frozen
class IndexEntry:
    base_offset: int
    position: int


@attrs.frozen(kw_only=True)
class Ends:
    key: SegmentKey
    header: Header
    trailer: Trailer
    size_bytes: int

    @property
    def body_bytes(self) -> int:
        return self.size_bytes - HEADER.size - TRAILER.size


def is_version_1(tail: Buffer) -> bool:
    """Tell whether an object that ends like this is a `.kfs` of version 1."""
    return bytes(tail[-len(TRAILER_MAGIC) :]) == TRAILER_MAGIC


def decode_header(data: Buffer, name: str) -> Header:
    if len(data) < HEADER.size:
        raise DamagedObject(f"{name}: {len(data)} bytes are too few for a header")
    magic, version, _, base_offset, record_count, created_ms, _ = HEADER.unpack_from(data)
    if magic != HEADER_MAGIC or version != VERSION or base_offset < 0 or record_count <= 0:
        raise DamagedObject(f"{name}: no version {VERSION} header at the beginning")
    return Header(base_offset, record_count, created_ms)


def encode_header(header: Header) -> bytes:
    return HEADER.pack(HEADER_MAGIC, VERSION, 0, header.base_offset, header.record_count, header.created_ms, 0)


def decode_trailer(tail: Buffer, name: str) -> Trailer:
    if len(tail) < TRAILER.size:
        raise DamagedObject(f"{name}: {len(tail)} bytes are too few for a trailer; it is cut off or not a segment")
    body_crc, last_offset, magic = TRAILER.unpack(memoryview(tail)[-TRAILER.size :])
    if magic != TRAILER_MAGIC:
        raise DamagedObject(f"{name}: no version {VERSION} trailer at the end; it is cut off or not a segment")
    return Trailer(body_crc, last_offset)


def encode_trailer(trailer: Trailer) -> bytes:
    return TRAILER.pack(trailer.body_crc, trailer.last_offset, TRAILER_MAGIC)


def decode_ends(key: SegmentKey, head: Buffer, tail: Buffer, size_bytes: int) -> Ends:
    """Decode header and trailer, which must agree with the key. Raises DamagedObject."""
    header, trailer = decode_header(head, key.key), decode_trailer(tail, key.key)
    if size_bytes <= HEADER.size + TRAILER.size:
        raise DamagedObject(f"{key.key}: {size_bytes} bytes are too few for a segment")
    if header.base_offset != key.base_offset or trailer.last_offset < header.base_offset:
        raise DamagedObject(
            f"{key.key}: holds offsets {header.base_offset} to {trailer.last_offset}; it is that of another segment"
        )
    return Ends(key=key, header=header, trailer=trailer, size_bytes=size_bytes)


def decode_index(data: Buffer, name: str) -> Sequence[IndexEntry]:
    if len(data) < INDEX_HEADER.size:
        raise DamagedObject(f"{name}: {len(data)} bytes are too few for an index")
    magic, version, count, _, _ = INDEX_HEADER.unpack_from(data)
    if magic != INDEX_MAGIC or version != VERSION:
        raise DamagedObject(f"{name}: no version {VERSION} index")
    if count <= 0 or len(data) != INDEX_HEADER.size + count * INDEX_ENTRY.size:
        raise DamagedObject(f"{name}: has {len(data)} bytes and says that it has {count} entries")
    return [IndexEntry(*row) for row in INDEX_ENTRY.iter_unpack(memoryview(data)[INDEX_HEADER.size :])]


def encode_index(index: Index) -> bytes:
    header = INDEX_HEADER.pack(INDEX_MAGIC, VERSION, len(index.positions), INDEX_INTERVAL, 0)
    rows = zip(index.base_offsets, index.positions, strict=True)
    return header + b"".join(INDEX_ENTRY.pack(base_offset, position) for base_offset, position in rows)


def footer_from_index(ends: Ends, entries: Sequence[IndexEntry]) -> Footer:
    """Make a footer with the rows of the `.index` and unknown timestamps. Raises DamagedObject."""
    index = Index(
        array("q", [entry.base_offset for entry in entries]),
        array("q", [entry.position for entry in entries]),
        array("q", [MAX_TIMESTAMP_UNKNOWN]) * len(entries),
    )
    footer = Footer(
        identity=_identity(ends, batch_count=len(entries), max_timestamp_ms=MAX_TIMESTAMP_UNKNOWN),
        last_offset=ends.trailer.last_offset,
        record_count=ends.header.record_count,
        index=index,
        producers=(),
        epochs=(),
        version=VERSION,
    )
    check_index_order(footer, ends.key.of_kind("index").key)
    return footer


def footer_without_index(ends: Ends) -> Footer:
    """Make a footer with one row. Raises DamagedObject."""
    return footer_from_index(ends, [IndexEntry(ends.header.base_offset, HEADER.size)])


def footer_from_batches(ends: Ends, spans: Sequence[IndexedBatch]) -> Footer:
    """Make a footer with a row for each batch, and timestamps. Raises DamagedObject."""
    name = ends.key.key
    if not spans or sum(span.size_bytes for span in spans) != ends.body_bytes:
        raise DamagedObject(f"{name}: the batches do not fill what is between header and trailer")
    latest_ms = max(span.max_timestamp_ms for span in spans)
    identity = _identity(ends, batch_count=len(spans), max_timestamp_ms=latest_ms)
    footer = attrs.evolve(
        build_footer(identity, spans, producers=(), epochs=()),
        last_offset=ends.trailer.last_offset,
        record_count=ends.header.record_count,
        version=VERSION,
    )
    check_index_order(footer, name)
    return footer


def _identity(ends: Ends, *, batch_count: int, max_timestamp_ms: int) -> Identity:
    return Identity(
        topic_id=ends.key.topic_id,
        partition=ends.key.partition,
        base_offset=ends.header.base_offset,
        generation=ends.key.generation,
        leader_epoch=-1,
        created_ms=ends.header.created_ms,
        batch_count=batch_count,
        body_bytes=ends.body_bytes,
        max_timestamp_ms=max_timestamp_ms,
        body_crc=ends.trailer.body_crc,
    )


async def read_footer_v1(store: ObjectStore, key: SegmentKey, tail: ObjectPart) -> Footer:
    """Read the footer of the `.kfs` that ends with `tail`: two small GETs, more if its `.index` is damaged.

    Timestamps are unknown, unless all of the object is in `tail`. Raises NotFound, DamagedObject, StoreError.
    """
    if len(tail.data) == tail.object_size_bytes:
        ends = decode_ends(key, tail.data, tail.data, tail.object_size_bytes)
        body = memoryview(tail.data)[HEADER.size : HEADER.size + ends.body_bytes]
        splitter = _splitter(ends)
        try:
            headers = [parse_header(batch.data) for batch in splitter.feed(body)]
            splitter.finish()
        except KafkaError as exc:
            raise DamagedObject(f"{key.key}: the batch at byte {splitter.position}: {exc}") from exc
        return footer_from_batches(ends, headers)
    head = await store.get_range(key.key, 0, HEADER.size)
    ends = decode_ends(key, head.data, tail.data, tail.object_size_bytes)
    index_key = key.of_kind("index").key
    try:
        entries = decode_index((await store.get(index_key)).data, index_key)
        return footer_from_index(ends, entries)
    except (NotFound, DamagedObject):
        return await _read_batches(store, ends)


async def read_exact_footer_v1(store: ObjectStore, key: SegmentKey) -> Footer:
    """Read the whole object for a footer with timestamps. Raises NotFound, DamagedObject, StoreError."""
    tail = await store.get_tail(key.key, TRAILER.size)
    head = await store.get_range(key.key, 0, HEADER.size)
    return await _read_batches(store, decode_ends(key, head.data, tail.data, tail.object_size_bytes))


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
    return footer_from_batches(ends, headers)


def _splitter(ends: Ends) -> BatchSplitter:
    return BatchSplitter(HEADER.size, HEADER.size + ends.body_bytes)
