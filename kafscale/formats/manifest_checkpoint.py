"""Checkpoints of all manifests in the bucket, so that a start need not read every partition's last footer.

    checkpoint = magic 8 | version u16 | zeros 2 | partition count u32 | length u64 | crc32c u32
                 | partitions (`length` bytes)
    partition  = topic id 16 | partition i32 | length of the log's end u32 | segment count u32
                 | the log's end, as `kafscale.formats.log_end` encodes it | segments
    segment    = base offset i64 | epoch i32 | generation u32 | version u8 | last offset i64 | size i64
                 | max timestamp ms i64 | first dirty offset i64 | fingerprint u64
               | stable end i64 | aborted count i32

A checkpoint is never the truth, only a short cut. What exists is what the bucket's listing says; the checkpoint vouches
for a listed segment if its `.kfs` has the fingerprint (size and ETag) of then and its `.index` the size that goes with
it. Everything else is read, as without a checkpoint. So an old one, a damaged one or none costs time and nothing else.
Two things only the checkpoint can tell. One is that a segment which it knows is gone. A quarantined segment is in it
without a fingerprint, for the sake of its last offset, and so is one that has gone from the end of the log. The other
is what the broker whose epoch is in the checkpoint's key took for the log (`decided_by`), before it served any of it:
what contradicts that, and is of an earlier epoch, came later (`kafscale.formats.resolution`).

Written by `kafscale.log.bucket.manifest_keeper`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal

import attrs
from crc32c import crc32c

from kafscale.buffers import Buffer, size_of
from kafscale.errors import DamagedObject
from kafscale.formats.log_end import LogEnd
from kafscale.formats.manifest import FINGERPRINT_UNKNOWN, ListedSegment, PartitionId, Segment
from kafscale.formats.resolution import Decided
from kafscale.formats.segment import HEADER, body_crc
from kafscale.formats.segment_v1 import VERSION as VERSION_1
from kafscale.store.paths import EPOCH_UNKNOWN, SegmentKey, parse_numbered_key

VERSION = 3
MAGIC = b"KAFSMANI"
MAX_BYTES = 64 << 20  # 1.2 million segments; partitions that have no room are left out

_HEADER = struct.Struct(">8sHxxIQ")
HEADER_BYTES = _HEADER.size + 4
_PARTITION = struct.Struct(">16siII")
_SEGMENT = struct.Struct(">qiIBqqqqQqi")
_FACTS = (  # the columns behind those of the key
    "last_offset",
    "size_bytes",
    "max_timestamp_ms",
    "first_dirty_offset",
    "fingerprint",
    "stable_end",
    "aborted_count",
)
_facts_of = attrgetter(*_FACTS)


@attrs.frozen
class MissingSegment:
    """A segment of the checkpoint that is gone; both offsets are inclusive."""

    base_offset: int
    last_offset: int
    generation: int
    epoch: int = EPOCH_UNKNOWN
    version: Literal[1, 2] = 2

    def may_be_in(self, segment: Segment) -> bool:
        """Tell whether a newer segment may have been made from it."""
        return (
            segment.generation > self.generation
            and segment.base_offset <= self.last_offset
            and segment.last_offset >= self.base_offset
        )


@attrs.frozen
class Recognised:
    """A listing compared with a checkpoint: vouched `segments`, and `missing` ones.

    `changed` has the checkpoint's last offset of segments whose objects have changed or are damaged.
    """

    segments: Sequence[Segment]
    missing: Sequence[MissingSegment]
    changed: Mapping[SegmentKey, int] = attrs.field(factory=dict)


@attrs.frozen(eq=False, repr=False)
class KnownPartition:
    """One partition of a checkpoint, decoded only when needed."""

    _end: memoryview
    _rows: memoryview
    decided_by: int = EPOCH_UNKNOWN  # the epoch of the broker that wrote the checkpoint

    def end(self) -> LogEnd | None:
        """Return the state after the last segment; None if it was too large."""
        return LogEnd.decode(self._end)

    @property
    def segment_count(self) -> int:
        return len(self._rows) // _SEGMENT.size

    def last_base_offset(self) -> int:
        return max((row[0] for row in _SEGMENT.iter_unpack(self._rows)), default=-1)

    def listed(self, any_key: SegmentKey) -> Sequence[ListedSegment]:
        """Return what a listing would have shown; `any_key` is of an object of the partition."""
        return [
            ListedSegment(
                attrs.evolve(any_key, base_offset=base_offset, epoch=epoch, generation=generation, version=version),
                row[1],
                0,
                row[4],
            )
            for (base_offset, epoch, generation, version), row in self._by_key().items()
        ]

    def _by_key(self) -> dict[tuple[int, int, int, Literal[1, 2]], tuple[int, ...]]:
        return {row[:4]: row[4:] for row in _SEGMENT.iter_unpack(self._rows)}

    def decided(self, keys: Iterable[SegmentKey]) -> Decided:
        """Return which of these segments the checkpoint's writer took for parts of the log."""
        rows = self._by_key()
        known = {key for key in keys if (key.base_offset, key.epoch, key.generation, key.version) in rows}
        return Decided(self.decided_by, known)

    def recognise(self, listed: Iterable[ListedSegment]) -> Recognised:
        rows = self._by_key()
        vouched: list[Segment] = []
        changed: dict[SegmentKey, int] = {}
        for listed_segment in listed:
            key = listed_segment.key
            row = rows.pop((key.base_offset, key.epoch, key.generation, key.version), None)
            if row is None:
                continue
            facts: dict[str, Any] = dict(zip(_FACTS, row, strict=True))
            segment = Segment(key=key, **facts)
            if segment.fingerprint == listed_segment.fingerprint != FINGERPRINT_UNKNOWN and _index_may_be_its_own(
                segment, listed_segment
            ):
                vouched.append(segment)
            else:
                changed[key] = segment.last_offset
        missing = [
            MissingSegment(base_offset, row[0], generation, epoch, version)
            for (base_offset, epoch, generation, version), row in rows.items()
        ]
        return Recognised(vouched, missing, changed)


def _index_may_be_its_own(segment: Segment, listed: ListedSegment) -> bool:
    footer_is_read = segment.size_bytes != listed.object_size_bytes
    if footer_is_read and segment.key.version != VERSION_1:
        return listed.index_size_bytes == listed.object_size_bytes - segment.size_bytes - HEADER.size
    return listed.has_index


ManifestCheckpoint = Mapping[PartitionId, KnownPartition]


def decode_manifests(key: str, data: Buffer) -> ManifestCheckpoint:
    """Decode a checkpoint. Raises DamagedObject, naming the key."""
    view = memoryview(data)
    header, checksum, body = view[: _HEADER.size], view[_HEADER.size : HEADER_BYTES], view[HEADER_BYTES:]
    if len(checksum) < 4 or crc32c(body, crc32c(header)) != int.from_bytes(checksum, "big"):
        raise DamagedObject(f"{key}: the checksum at {_HEADER.size} is not that of its {len(view)} bytes")
    magic, version, partition_count, length = _HEADER.unpack(header)
    if magic != MAGIC or length != len(body):
        raise DamagedObject(f"{key}: not a checkpoint of manifests")
    if version != VERSION:
        raise DamagedObject(f"{key}: version {version} of a checkpoint of manifests is not known, only {VERSION}")
    numbered = parse_numbered_key(key)
    decided_by = EPOCH_UNKNOWN if numbered is None else numbered.epoch
    known: dict[PartitionId, KnownPartition] = {}
    position = 0
    for _ in range(partition_count):
        if position + _PARTITION.size > len(body):
            break
        topic_id, partition, end_bytes, segment_count = _PARTITION.unpack_from(body, position)
        position += _PARTITION.size
        rows_at = position + end_bytes
        end = rows_at + segment_count * _SEGMENT.size
        known[topic_id, partition] = KnownPartition(body[position:rows_at], body[rows_at:end], decided_by)
        position = end
    if position != len(body) or len(known) != partition_count:
        raise DamagedObject(f"{key}: its {partition_count} partitions do not take the {len(body)} bytes that it has")
    return known


@attrs.frozen(eq=False, repr=False)
class ManifestSnapshot:
    """A partition's segments at one moment. `end` is the encoded log's end, or empty."""

    topic_id: bytes
    partition: int
    end: bytes
    segments: Sequence[Segment]

    @property
    def size_bytes(self) -> int:
        return _PARTITION.size + len(self.end) + len(self.segments) * _SEGMENT.size

    def head(self) -> bytes:
        return _PARTITION.pack(self.topic_id, self.partition, len(self.end), len(self.segments)) + self.end


def encode_segments(segments: Iterable[Segment]) -> bytes:
    return b"".join(map(_encode_segment, segments))


def _encode_segment(segment: Segment) -> bytes:
    return _SEGMENT.pack(
        segment.base_offset,
        segment.epoch,
        segment.generation,
        segment.key.version,
        *_facts_of(segment),
    )


def encode_header(partition_count: int, body: Sequence[Buffer]) -> list[bytes]:
    header = _HEADER.pack(MAGIC, VERSION, partition_count, size_of(body))
    checksum = body_crc([header, *body])
    return [header, checksum.to_bytes(4, "big")]
