"""Keep a checkpoint of all manifests in the bucket (`kafscale.formats.manifest_checkpoint`).

It is written at a start, every few minutes if anything has changed, and at a clean stop; two are kept. It is encoded in
slices on the event loop: a thread would hold the interpreter's lock for longer. The checkpoint of a start is written
before anything is served, so that a contradicting object of an earlier broker is known to be late.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

import attrs
import trio

from kafscale.buffers import Buffer, size_of
from kafscale.errors import StoreError
from kafscale.formats.manifest import Segment
from kafscale.formats.manifest_checkpoint import (
    HEADER_BYTES,
    MAX_BYTES,
    ManifestCheckpoint,
    ManifestSnapshot,
    decode_manifests,
    encode_header,
    encode_segments,
)
from kafscale.log.partition.partition import Partition
from kafscale.metrics import Metrics
from kafscale.store.base import ObjectStore
from kafscale.store.version_writer import VersionWriter
from kafscale.store.versions import find_versions

FIRST_AFTER_SECONDS = 10.0  # after the one of the start: by then what was replayed is being flushed
INTERVAL_SECONDS = 300.0  # at 240 objects a minute, 600 partitions have changed: half a second to read
SLICE_COUNT = 1000  # segments that are encoded between two checkpoints of trio's, about 1 ms

logger = logging.getLogger(__name__)


def content_of(parts: Sequence[Buffer]) -> bytes:
    """Return the header of a checkpoint, which has its length and checksum."""
    return b"".join(bytes(memoryview(part)[:HEADER_BYTES]) for part in parts[:2])[:HEADER_BYTES]


async def encode_manifests(partitions: Iterable[Partition]) -> list[bytes]:
    """Encode a checkpoint as buffers. Others run in between; each partition is as of one moment."""
    body: list[bytes] = []
    size_bytes = partition_count = since_checkpoint = 0
    for partition in partitions:
        taken = _snapshot(partition)
        if size_bytes + taken.size_bytes > MAX_BYTES:
            continue
        partition_count += 1
        size_bytes += taken.size_bytes
        body.append(taken.head())
        for start in range(0, len(taken.segments), SLICE_COUNT):
            rows = taken.segments[start : start + SLICE_COUNT]
            body.append(encode_segments(rows))
            since_checkpoint += 1 + len(rows)
            if since_checkpoint >= SLICE_COUNT:
                since_checkpoint = 0
                await trio.lowlevel.checkpoint()
    return [*encode_header(partition_count, body), *body]


def _snapshot(partition: Partition) -> ManifestSnapshot:
    """Take the segments, and where quarantined and missing ones ended, if nothing else keeps their offsets."""
    end = max((segment.last_offset for segment in partition.manifest.segments), default=-1)
    unread = [*partition.quarantined.items(), *(item for item in partition.missing.items() if item[1] > end)]
    ends = [Segment(key=key, last_offset=offset, size_bytes=0, max_timestamp_ms=-1) for key, offset in unread]
    segments = [*partition.manifest.segments, *ends]
    return ManifestSnapshot(partition.topic_id, partition.index, partition.encoded_end, segments)


@attrs.define(eq=False, kw_only=True, repr=False)
class ManifestCheckpointer:
    """Writes checkpoints of all partitions that have a segment. `writer` uses the background view of the store."""

    writer: VersionWriter
    partitions: Callable[[], Collection[Partition]]
    is_kept: bool = True  # not with several brokers, each of which knows a part: there the placements tell it
    written_bytes: int = attrs.field(default=0, init=False)  # of the last one
    _written: bytes = attrs.field(default=b"", init=False)  # its first bytes: they have its length and checksum

    def register(self, metrics: Metrics) -> None:
        help = "Size of the last written manifest checkpoint."
        metrics.gauge("kafscale_manifest_checkpoint_bytes", help, lambda: self.written_bytes)

    async def find(self, store: ObjectStore) -> ManifestCheckpoint:
        """Return the newest intact checkpoint, or an empty one. Raises StoreError."""
        if not self.is_kept:
            return {}

        def decode(key: str, data: Buffer) -> ManifestCheckpoint:
            manifests = decode_manifests(key, data)
            self._written, self.written_bytes = content_of([data]), size_of([data])
            return manifests

        found = await find_versions(store, self.writer.namespace, "manifests", decode)
        for damage in found.damage:
            logger.warning("ignoring a damaged checkpoint of the manifests: %s", damage)
        self.writer.inherit(found.keys)
        return {} if found.newest is None else found.newest

    async def run(self) -> None:
        await trio.sleep(FIRST_AFTER_SECONDS)
        while True:
            try:
                await self.write_if_changed()
            except StoreError as exc:
                logger.warning("the manifests have no newer checkpoint yet: %s", exc)
            await trio.sleep(INTERVAL_SECONDS)

    async def write_if_changed(self) -> None:
        """Write a checkpoint, and delete all but the last two. Raises StoreError, Fenced."""
        await self.decide()
        await self.writer.trim()

    async def decide(self) -> None:
        """Write a checkpoint if something has changed, and delete none. Raises StoreError."""
        if not self.is_kept:
            return
        held = [partition for partition in self.partitions() if partition.manifest.segments or partition.quarantined]
        if not held and not self.written_bytes:
            return
        parts = await encode_manifests(held)
        content = content_of(parts)
        if content != self._written:
            await self.writer.write(parts)
            self._written, self.written_bytes = content, size_of(parts)
