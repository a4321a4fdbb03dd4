"""Segments as objects of a bucket, whole and of both versions, for tests that damage or read them.

Version 1 is written here byte by byte from its description, not by the code that reads it.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import attrs
from crc32c import crc32c

from kafscale.errors import KafkaError
from kafscale.formats.segment import EpochStart, Identity, body_crc, build_footer, encode_footer, encode_header
from kafscale.store.base import ObjectStore
from kafscale.store.paths import SegmentKey, version_1_topic_id
from kafscale.wire.batch_header import HEADER_BYTES, MIN_TIMESTAMP_UNKNOWN, parse_header, seal_batch, set_base_offset
from kafscale.wire.records import ProducerStamp, Record, build_batch, iterate_records

CREATED_MS = 1_700_000_000_000


@attrs.frozen
class SegmentObjects:
    key: SegmentKey
    kfs: bytes
    index: bytes

    async def put(self, store: ObjectStore) -> None:
        await store.put(self.key.key, [self.kfs])
        await store.put(self.key.of_kind("index").key, [self.index])

    def write_to(self, directory: Path) -> None:
        for key, data in ((self.key, self.kfs), (self.key.of_kind("index"), self.index)):
            path = directory / key.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def make_batch(base_offset: int, values: Sequence[bytes], *, producer_id: int = -1, base_sequence: int = 0) -> bytes:
    """Return a record batch; the record at offset n has the timestamp CREATED_MS + n."""
    records = [
        Record(value=value, timestamp_ms=CREATED_MS + offset) for offset, value in enumerate(values, start=base_offset)
    ]
    producer = ProducerStamp() if producer_id < 0 else ProducerStamp(producer_id, 0, base_sequence)
    return bytes(build_batch(records, base_offset=base_offset, producer=producer))


def make_batches(
    base_offset: int, batch_count: int, *, records_per_batch: int = 3, value_bytes: int = 20
) -> list[bytes]:
    starts = range(base_offset, base_offset + batch_count * records_per_batch, records_per_batch)
    return [
        make_batch(start, [b"%d" % offset + b"." * value_bytes for offset in range(start, start + records_per_batch)])
        for start in starts
    ]


def batches_of_size(size_bytes: int, count: int) -> bytes:
    """Return consecutive batches of exactly this size, filled with random bytes."""
    rng = random.Random(0)
    return b"".join(
        seal_batch(rng.randbytes(size_bytes - HEADER_BYTES), offset, 0, 0, 0, CREATED_MS, CREATED_MS, -1, -1, -1, 1)
        for offset in range(count)
    )


def version_1_key(topic: str, partition: int, base_offset: int, *, namespace: str = "default") -> SegmentKey:
    """Return the key of a segment of KafScale's Go broker."""
    return SegmentKey(
        namespace=namespace,
        topic=topic,
        topic_id=version_1_topic_id(topic, namespace=namespace),
        partition=partition,
        base_offset=base_offset,
        version=1,
    )


def version_1_objects(key: SegmentKey, batches: Sequence[bytes], *, interval: int = 100) -> SegmentObjects:
    """Make the objects of KafScale's Go broker, with an index entry at the first batch and every `interval` records."""
    headers = [parse_header(memoryview(batch)) for batch in batches]
    records = sum(header.record_count for header in headers)
    entries, since_last, position = b"", interval, 32
    for batch, header in zip(batches, headers, strict=True):
        if since_last >= interval:
            entries += header.base_offset.to_bytes(8, "big") + position.to_bytes(4, "big")
            since_last = 0
        since_last += header.record_count
        position += len(batch)
    body = b"".join(batches)
    kfs = b"KAFS" + b"\0\1" + b"\0\0" + struct.pack(">qiq", key.base_offset, records, CREATED_MS) + b"\0\0\0\0"
    kfs += body
    kfs += crc32c(body).to_bytes(4, "big") + headers[-1].last_offset.to_bytes(8, "big") + b"END!"
    index = b"IDX\0" + b"\0\1" + struct.pack(">ii", len(entries) // 12, interval) + b"\0\0" + entries
    return SegmentObjects(key, kfs, index)


@attrs.frozen(kw_only=True)
class _Span:
    base_offset: int
    last_offset: int
    max_timestamp_ms: int
    min_timestamp_ms: int
    size_bytes: int

    @classmethod
    def of(cls, batch: bytes, tells_earliest: bool) -> _Span:
        """Take the earliest time from the records, as a broker does that has checked them."""
        header = parse_header(memoryview(batch))
        times_ms: list[int] = []
        if tells_earliest:
            with suppress(KafkaError):  # what is malformed was stored by a broker that did not look at the records
                times_ms = [record.timestamp_ms for record in iterate_records(memoryview(batch))]
        return cls(
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            max_timestamp_ms=header.max_timestamp_ms,
            min_timestamp_ms=min(times_ms, default=MIN_TIMESTAMP_UNKNOWN),
            size_bytes=header.size_bytes,
        )


def version_2_objects(
    key: SegmentKey,
    batches: Sequence[bytes],
    *,
    leader_epoch: int = 0,
    tells_markers: bool = True,
    tells_earliest: bool = True,
) -> SegmentObjects:
    """Make the objects that a flush writes, without producers; the batches get the leader epoch.

    `tells_markers` and `tells_earliest` are False for footers of earlier versions, which lacked the rows with markers,
    or the earliest times.
    """
    batches = [_with_leader_epoch(batch, leader_epoch) for batch in batches]
    headers = [parse_header(memoryview(batch)) for batch in batches]
    identity = Identity(
        topic_id=key.topic_id,
        partition=key.partition,
        base_offset=key.base_offset,
        generation=key.generation,
        leader_epoch=leader_epoch,
        created_ms=CREATED_MS,
        batch_count=len(batches),
        body_bytes=sum(map(len, batches)),
        max_timestamp_ms=max(header.max_timestamp_ms for header in headers),
        body_crc=body_crc(batches),
    )
    epochs = [EpochStart(leader_epoch, key.base_offset)]
    markers = [header.base_offset for header in headers if header.is_control] if tells_markers else None
    spans = [_Span.of(batch, tells_earliest) for batch in batches]
    footer = build_footer(identity, spans, producers=[], epochs=epochs, marker_offsets=markers)
    index = encode_footer(footer)
    return SegmentObjects(key, b"".join([encode_header(footer), *batches, index]), index)


def _with_leader_epoch(batch: bytes, leader_epoch: int) -> bytes:
    changed = bytearray(batch)
    set_base_offset(memoryview(changed), parse_header(memoryview(batch)).base_offset, leader_epoch)
    return bytes(changed)
