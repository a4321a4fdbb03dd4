"""Read the footer of a segment: one GET of the last 64 KiB of its `.kfs`, or all of its `.index`.

The last bytes tell the version. Imports no trio: Spark's readers run these coroutines on a store that blocks.
"""

from __future__ import annotations

from kafscale.buffers import Buffer
from kafscale.errors import DamagedObject, NotFound
from kafscale.formats import segment_v1
from kafscale.formats.manifest import MAX_TIMESTAMP_UNKNOWN
from kafscale.formats.segment import (
    FOOTER_MAX_BYTES,
    Footer,
    check_index_order,
    decode_footer,
    footer_bytes_needed,
)
from kafscale.formats.segment_v1 import read_exact_footer_v1, read_footer_v1
from kafscale.store.base import ObjectPart, ObjectStore
from kafscale.store.paths import EPOCH_UNKNOWN, SegmentKey

FOOTER_READ_BYTES = 64 << 10  # as klite; a 64 MiB segment's footer is about 25 KiB


async def read_footer(store: ObjectStore, segment_key: SegmentKey) -> Footer:
    """Read the footer of a `.kfs`. Raises NotFound, DamagedObject, StoreError."""
    return (await read_footer_and_tail(store, segment_key))[0]


async def read_footer_and_tail(store: ObjectStore, segment_key: SegmentKey) -> tuple[Footer, ObjectPart]:
    """Read a footer, and return the end of the object that was read, which has some of the batches."""
    part = await store.get_tail(segment_key.key, FOOTER_READ_BYTES)
    if segment_v1.is_version_1(part.data):
        return await read_footer_v1(store, segment_key, part), part
    footer = footer_in_tail(part, segment_key)
    if footer is None:
        part = await store.get_tail(segment_key.key, footer_bytes_needed(part.data, segment_key.key))
        footer = decode_end(part.data, part.object_size_bytes, segment_key)
    return footer, part


def footer_in_tail(part: ObjectPart, segment_key: SegmentKey) -> Footer | None:
    """Return the footer in this end of an object; None if it is longer. Raises DamagedObject."""
    if segment_v1.is_version_1(part.data) or footer_bytes_needed(part.data, segment_key.key) > len(part.data):
        return None
    return decode_end(part.data, part.object_size_bytes, segment_key)


def decode_end(tail: Buffer, object_size_bytes: int, segment_key: SegmentKey) -> Footer:
    """Decode the footer at the end of a `.kfs` of version 2. Raises DamagedObject."""
    key = segment_key.key
    footer = decode_footer(tail, key)
    check_index_order(footer, key)
    check_identity(footer, segment_key)
    if footer.end_position + footer_bytes_needed(tail, key) != object_size_bytes:
        raise DamagedObject(f"{key}: has {object_size_bytes} bytes, its footer tells of another size")
    return footer


async def read_footer_with_timestamps(store: ObjectStore, segment_key: SegmentKey) -> Footer:
    """Read a footer with timestamps; for version 1 the whole object is read. Raises as `read_footer`."""
    footer = await read_footer(store, segment_key)
    if footer.identity.max_timestamp_ms == MAX_TIMESTAMP_UNKNOWN:
        footer = await read_exact_footer_v1(store, segment_key)
    return footer


async def index_of(store: ObjectStore, segment_key: SegmentKey, footer: Footer) -> Buffer:
    """Return the content of the `.index` for this footer. Raises NotFound, StoreError.

    From version 2 on it is the end of the `.kfs`, with what a later version has added.
    """
    if footer.version == segment_v1.VERSION:
        return segment_v1.encode_index(footer.index)
    return (await store.get_range(segment_key.key, footer.end_position, FOOTER_MAX_BYTES)).data


async def index_goes_with(store: ObjectStore, segment_key: SegmentKey, footer: Footer) -> bool:
    if footer.version != segment_v1.VERSION:
        return await read_index(store, segment_key) == footer
    key = segment_key.of_kind("index").key
    try:
        entries = segment_v1.decode_index((await store.get(key)).data, key)
    except (NotFound, DamagedObject):
        return False
    rows = set(zip(footer.index.base_offsets, footer.index.positions, strict=True))
    return all((entry.base_offset, entry.position) in rows for entry in entries)


async def read_index(store: ObjectStore, segment_key: SegmentKey) -> Footer | None:
    """Read the `.index`; None if it is missing or damaged: the `.kfs` has the footer, too."""
    key = segment_key.of_kind("index").key
    try:
        footer = decode_footer((await store.get(key)).data, key)
        check_index_order(footer, key)
        check_identity(footer, segment_key)
    except (NotFound, DamagedObject):
        return None
    return footer


def check_identity(footer: Footer, key: SegmentKey) -> None:
    """Raise DamagedObject for the footer of another segment, which was copied or renamed."""
    identity = footer.identity
    told = (identity.topic_id, identity.partition, identity.base_offset, identity.generation)
    of_its_writer = key.epoch in (EPOCH_UNKNOWN, identity.leader_epoch)
    if told != (key.topic_id, key.partition, key.base_offset, key.generation) or not of_its_writer:
        raise DamagedObject(f"{key.key}: the footer is that of another segment")
