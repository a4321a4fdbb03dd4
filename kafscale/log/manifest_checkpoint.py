"""Checkpoints of all manifests in the bucket, so that a start need not read every partition's last footer.

    checkpoint = magic 8 | version u16 | zeros 2 | partition count u32 | length u64 | crc32c u32
                 | partitions (`length` bytes)
    partition  = topic id 16 | partition i32 | length of the log's end u32 | segment count u32
                 | the log's end, as `kafscale.log.log_end` encodes it | segments
    segment    = base offset i64 | generation u32 | version u8 | last offset i64 | size i64 | max timestamp ms i64
                 | first dirty offset i64 | fingerprint u64

A checkpoint is never the truth, only a short cut. What exists is what the bucket's listing says; the checkpoint vouches
for a listed segment if its `.kfs` has the fingerprint (size and ETag) of then and its `.index` the size that goes with
it. Everything else is read, as without a checkpoint. So an old one, a damaged one or none costs time and nothing else.
One thing only the checkpoint can tell: that a segment which it knows is gone. A quarantined segment is in it without a
fingerprint, for the sake of its last offset.

The newest intact one wins, and two are kept. It is written some seconds after a start, then every few minutes, and at a
clean stop, if anything has changed. Encoded in slices between which others run: in a thread it would hold the
interpreter's lock for longer at a time.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import attrs
import trio
from crc32c import crc32c

from kafscale.errors import DamagedObject, StoreError
from kafscale.formats.manifest import FINGERPRINT_UNKNOWN, Segment
from kafscale.formats.segment import HEADER
from kafscale.formats.segment_v1 import VERSION as VERSION_1
from kafscale.log.bucket.listing import ListedSegment, PartitionId
from kafscale.log.log_end import LogEnd
from kafscale.log.partition.partition import Partition
from kafscale.store.base import Buffer, ObjectStore
from kafscale.store.paths import SegmentKey
from kafscale.store.versions import VersionWriter, find_versions

VERSION = 1
MAGIC = b"KAFSMANI"
FIRST_AFTER_SECONDS = 10.0  # so that a broker that is killed again and again does not start slowly each time
INTERVAL_SECONDS = 300.0  # at 240 objects a minute, 600 partitions have changed: half a second to read
SLICE_COUNT = 1000  # segments that are encoded between two checkpoints of trio's, about 1 ms
MAX_BYTES = 64 << 20  # 1.2 million segments; partitions that have no room are left out

_HEADER = struct.Struct(">8sHxxIQ")
HEADER_BYTES = _HEADER.size + 4
_PARTITION = struct.Struct(">16siII")
_SEGMENT = struct.Struct(">qIBqqqqQ")

logger = logging.getLogger(__name__)


@attrs.frozen
class MissingSegment:
    """A segment that was there when the checkpoint was taken; both offsets are inclusive."""

    base_offset: int
    last_offset: int
    generation: int

    def may_be_in(self, segment: Segment) -> bool:
        """Whether that one, of a newer generation, may have been made of it."""
        return (
            segment.generation > self.generation
            and segment.base_offset <= self.last_offset
            and segment.last_offset >= self.base_offset
        )


@attrs.frozen
class Recognised:
    """Of the listed segments those that the checkpoint vouches for, and those that it knows and the listing lacks.

    `changed` has the last offset of then of those whose objects are others now, or damaged.
    """

    segments: Sequence[Segment]
    missing: Sequence[MissingSegment]
    changed: Mapping[SegmentKey, int] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class KnownPartition:
    """What a checkpoint holds of a partition, encoded until it is asked for."""

    _end: memoryview
    _rows: memoryview

    def end(self) -> LogEnd | None:
        """The state after the last segment; None if it was too large."""
        return LogEnd.decode(self._end)

    @property
    def segment_count(self) -> int:
        return len(self._rows) // _SEGMENT.size

    def last_base_offset(self) -> int:
        """The largest; -1 if there is no segment."""
        return max((row[0] for row in _SEGMENT.iter_unpack(self._rows)), default=-1)

    def recognise(self, listed: Iterable[ListedSegment]) -> Recognised:
        """Compare with what is in the bucket."""
        rows = {row[:3]: row[3:] for row in _SEGMENT.iter_unpack(self._rows)}
        vouched: list[Segment] = []
        changed: dict[SegmentKey, int] = {}
        for each in listed:
            key = each.key
            row = rows.pop((key.base_offset, key.generation, key.version), None)
            if row is None:
                continue
            last_offset, size_bytes, max_timestamp_ms, first_dirty_offset, fingerprint = row
            segment = Segment(
                key=key,
                last_offset=last_offset,
                size_bytes=size_bytes,
                max_timestamp_ms=max_timestamp_ms,
                first_dirty_offset=first_dirty_offset,
                fingerprint=fingerprint,
            )
            if fingerprint == each.fingerprint != FINGERPRINT_UNKNOWN and _index_may_be_its_own(segment, each):
                vouched.append(segment)
            else:
                changed[key] = last_offset
        missing = [MissingSegment(base, row[0], generation) for (base, generation, _), row in rows.items()]
        return Recognised(vouched, missing, changed)


def _index_may_be_its_own(segment: Segment, listed: ListedSegment) -> bool:
    """It was when the checkpoint was taken; it may have been cut off or deleted since."""
    footer_is_read = segment.size_bytes != listed.object_size_bytes
    if footer_is_read and segment.key.version != VERSION_1:
        return listed.index_size_bytes == listed.object_size_bytes - segment.size_bytes - HEADER.size
    return listed.has_index


ManifestCheckpoint = Mapping[PartitionId, KnownPartition]


def decode_manifests(key: str, data: Buffer) -> ManifestCheckpoint:
    """Raises DamagedObject, naming the key."""
    view = memoryview(data)
    header, checksum, body = view[: _HEADER.size], view[_HEADER.size : HEADER_BYTES], view[HEADER_BYTES:]
    if len(checksum) < 4 or crc32c(body, crc32c(header)) != int.from_bytes(checksum, "big"):
        raise DamagedObject(f"{key}: the checksum at {_HEADER.size} is not that of its {len(view)} bytes")
    magic, version, partition_count, length = _HEADER.unpack(header)
    if magic != MAGIC or length != len(body):
        raise DamagedObject(f"{key}: is no checkpoint of manifests")
    if version != VERSION:
        raise DamagedObject(f"{key}: version {version} of a checkpoint of manifests is not known, only {VERSION}")
    known: dict[PartitionId, KnownPartition] = {}
    position = 0
    for _ in range(partition_count):
        topic_id, partition, end_bytes, segment_count = _PARTITION.unpack_from(body, position)
        position += _PARTITION.size
        rows_at = position + end_bytes
        end = rows_at + segment_count * _SEGMENT.size
        known[topic_id, partition] = KnownPartition(body[position:rows_at], body[rows_at:end])
        position = end
    return known


async def find_manifests(store: ObjectStore, namespace: str, writer: VersionWriter) -> ManifestCheckpoint:
    """The newest intact one; empty if there is none. The `writer` inherits all of them. Raises StoreError."""
    found = await find_versions(store, namespace, "manifests", decode_manifests)
    for damage in found.damage:
        logger.warning("a checkpoint of the manifests is of no use: %s", damage)
    writer.inherit(found.keys)
    return {} if found.newest is None else found.newest


async def encode_manifests(partitions: Iterable[Partition]) -> list[bytes]:
    """The object as buffers. Lets others run in between; each partition is as it was at one moment."""
    body: list[bytes] = []
    size_bytes = partition_count = since_checkpoint = 0
    for partition in partitions:
        taken = _snapshot(partition)
        if size_bytes + taken.size_bytes > MAX_BYTES:
            continue
        partition_count += 1
        size_bytes += taken.size_bytes
        body.append(taken.head)
        for start in range(0, len(taken.segments), SLICE_COUNT):
            rows = taken.segments[start : start + SLICE_COUNT]
            body.append(b"".join(map(_encode_segment, rows)))
            since_checkpoint += 1 + len(rows)
            if since_checkpoint >= SLICE_COUNT:
                since_checkpoint = 0
                await trio.lowlevel.checkpoint()
    header = _HEADER.pack(MAGIC, VERSION, partition_count, size_bytes)
    checksum = crc32c(header)
    for part in body:
        checksum = crc32c(part, checksum)
    return [header, checksum.to_bytes(4, "big"), *body]


@attrs.frozen(eq=False)
class _Snapshot:
    """A partition at one moment: `segments` is a copy, and not encoded yet."""

    head: bytes
    segments: Sequence[Segment]

    @property
    def size_bytes(self) -> int:
        return len(self.head) + len(self.segments) * _SEGMENT.size


def _snapshot(partition: Partition) -> _Snapshot:
    segments = [*partition.manifest.segments, *map(_placeholder, partition.quarantined.items())]
    head = _PARTITION.pack(partition.topic_id, partition.index, len(partition.encoded_end), len(segments))
    return _Snapshot(head + partition.encoded_end, segments)


def _encode_segment(segment: Segment) -> bytes:
    key = segment.key
    return _SEGMENT.pack(
        key.base_offset,
        key.generation,
        key.version,
        segment.last_offset,
        segment.size_bytes,
        segment.max_timestamp_ms,
        segment.first_dirty_offset,
        segment.fingerprint,
    )


def _placeholder(quarantined: tuple[SegmentKey, int]) -> Segment:
    """Tells where a damaged segment ended, and vouches for nothing."""
    key, last_offset = quarantined
    return Segment(key=key, last_offset=last_offset, size_bytes=0, max_timestamp_ms=-1)


@attrs.define(eq=False, kw_only=True)
class ManifestCheckpointer:
    """Writes checkpoints of all partitions that have a segment. `writer` uses the background view of the store."""

    writer: VersionWriter
    partitions: Callable[[], Collection[Partition]]
    written_bytes: int = attrs.field(default=0, init=False)  # of the last one
    _written: tuple[int, int] = attrs.field(default=(0, 0), init=False)  # its checksum and length

    async def run(self) -> None:
        """Write one whenever something has changed, until cancelled."""
        await trio.sleep(FIRST_AFTER_SECONDS)
        while True:
            try:
                await self.write_if_changed()
            except StoreError as exc:
                logger.warning("the manifests have no newer checkpoint yet: %s", exc)
            await trio.sleep(INTERVAL_SECONDS)

    async def write_if_changed(self) -> None:
        """Write one, and delete all but the last two. Raises StoreError."""
        held = [each for each in self.partitions() if each.manifest.segments or each.quarantined]
        if not held and not self.written_bytes:
            return
        parts = await encode_manifests(held)
        size_bytes = sum(map(len, parts))
        content = int.from_bytes(parts[1], "big"), size_bytes
        if content != self._written:
            await self.writer.write(parts)
            self._written, self.written_bytes = content, size_bytes
            await self.writer.trim()
