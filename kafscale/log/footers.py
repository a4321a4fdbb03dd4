"""Footers of segments: read by one GET of the object's last 64 KiB, kept in a bounded LRU, one GET for many who ask.

Which version a segment has is seen by its end, and matters to nobody who has its footer.
"""

from __future__ import annotations

from collections import OrderedDict

import attrs
import trio

from kafscale.errors import DamagedObject, NotFound
from kafscale.log import segment_v1
from kafscale.log.footers_v1 import read_exact_footer_v1, read_footer_v1
from kafscale.log.manifest import MAX_TIMESTAMP_UNKNOWN, Segment
from kafscale.log.segment import Footer, check_index_order, decode_footer, encode_footer, footer_bytes_needed
from kafscale.store.base import Buffer, ObjectStore
from kafscale.store.paths import SegmentKey

FOOTER_READ_BYTES = 64 << 10  # as klite; a 64 MiB segment's footer is about 25 KiB


@attrs.define(eq=False)
class FooterStatistics:
    """Since the start: how many were found in the cache, and how many had to be read."""

    hit_count: int = 0
    miss_count: int = 0


@attrs.define(eq=False)
class Footers:
    """A cache of decoded footers; `max_bytes` bounds it, by an estimate of their size in memory."""

    store: ObjectStore
    max_bytes: int
    size_bytes: int = attrs.field(default=0, init=False)
    statistics: FooterStatistics = attrs.field(factory=FooterStatistics, init=False)
    _cached: OrderedDict[SegmentKey, Footer] = attrs.field(factory=OrderedDict, init=False)
    _loading: dict[SegmentKey, trio.Event] = attrs.field(factory=dict, init=False)

    def put(self, segment: Segment, footer: Footer) -> None:
        """Keep the footer of a segment that was just written."""
        self.forget(segment)
        self._cached[segment.key] = footer
        self.size_bytes += _memory_bytes(footer)
        while self.size_bytes > self.max_bytes and len(self._cached) > 1:
            _, oldest = self._cached.popitem(last=False)
            self.size_bytes -= _memory_bytes(oldest)

    def forget(self, segment: Segment) -> None:
        footer = self._cached.pop(segment.key, None)
        if footer is not None:
            self.size_bytes -= _memory_bytes(footer)

    async def get(self, segment: Segment) -> Footer:
        """The segment's footer. Raises NotFound, DamagedObject, StoreError."""
        while True:
            footer = self._cached.get(segment.key)
            if footer is not None:
                self._cached.move_to_end(segment.key)
                self.statistics.hit_count += 1
                return footer
            loading = self._loading.get(segment.key)
            if loading is None:
                return await self._load(segment)
            await loading.wait()

    async def get_with_timestamps(self, segment: Segment) -> Footer:
        """As `get`; where version 1 tells no timestamps, the whole object is read. Raises as `get` does."""
        footer = await self.get(segment)
        if footer.identity.max_timestamp_ms == MAX_TIMESTAMP_UNKNOWN:
            footer = await read_exact_footer_v1(self.store, segment.key)
            self.put(segment, footer)
        return footer

    async def _load(self, segment: Segment) -> Footer:
        self.statistics.miss_count += 1
        loading = self._loading[segment.key] = trio.Event()
        try:
            footer = await read_footer(self.store, segment.key)
            self.put(segment, footer)
            return footer
        finally:
            del self._loading[segment.key]
            loading.set()


def _memory_bytes(footer: Footer) -> int:
    batch_count = sum(len(producer.batches) for producer in footer.producers)
    return 2048 + 24 * len(footer.index.positions) + 400 * len(footer.producers) + 160 * batch_count


async def read_footer(store: ObjectStore, segment_key: SegmentKey) -> Footer:
    """The footer at the end of a `.kfs`. Raises NotFound, DamagedObject, StoreError."""
    key = segment_key.key
    part = await store.get_tail(key, FOOTER_READ_BYTES)
    if segment_v1.is_version_1(part.data):
        return await read_footer_v1(store, segment_key, part)
    needed = footer_bytes_needed(part.data, key)
    if needed > len(part.data):
        part = await store.get_tail(key, needed)
    return decode_end(part.data, part.object_size_bytes, segment_key)


def decode_end(tail: Buffer, object_size_bytes: int, segment_key: SegmentKey) -> Footer:
    """The footer of a `.kfs` of version 2, from the end of the object. Raises DamagedObject."""
    key = segment_key.key
    footer = decode_footer(tail, key)
    check_index_order(footer, key)
    check_identity(footer, segment_key)
    if footer.end_position + footer_bytes_needed(tail, key) != object_size_bytes:
        raise DamagedObject(f"{key}: has {object_size_bytes} bytes, its footer tells of another size")
    return footer


async def read_footer_with_timestamps(store: ObjectStore, segment_key: SegmentKey) -> Footer:
    """As `read_footer`; where version 1 tells no timestamps, the whole object is read. Raises as `read_footer` does."""
    footer = await read_footer(store, segment_key)
    if footer.identity.max_timestamp_ms == MAX_TIMESTAMP_UNKNOWN:
        footer = await read_exact_footer_v1(store, segment_key)
    return footer


def encode_index(footer: Footer) -> bytes:
    """The `.index` that goes with the `.kfs` of this footer."""
    return segment_v1.encode_index(footer.index) if footer.version == segment_v1.VERSION else encode_footer(footer)


async def index_goes_with(store: ObjectStore, segment_key: SegmentKey, footer: Footer) -> bool:
    """Whether the `.index` is there and is that of the `.kfs` with this footer."""
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
    """The footer as its own object, the `.index`; None if it is missing or damaged: the `.kfs` has it too."""
    key = segment_key.of_kind("index").key
    try:
        footer = decode_footer((await store.get(key)).data, key)
        check_index_order(footer, key)
        check_identity(footer, segment_key)
    except (NotFound, DamagedObject):
        return None
    return footer


def check_identity(footer: Footer, key: SegmentKey) -> None:
    """A footer of another segment, copied or renamed, is as good as a damaged one."""
    identity = footer.identity
    told = (identity.topic_id, identity.partition, identity.base_offset, identity.generation)
    if told != (key.topic_id, key.partition, key.base_offset, key.generation):
        raise DamagedObject(f"{key.key}: the footer is that of another segment")
