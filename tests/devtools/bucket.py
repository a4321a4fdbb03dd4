"""What a bucket holds by itself: every segment decoded and checked, as a reader without a broker would see it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import attrs

from kafscale.cluster.topics.names import is_internal
from kafscale.formats.footer_reading import read_footer, read_index
from kafscale.formats.manifest import Manifest, segment_of
from kafscale.formats.resolution import resolve
from kafscale.formats.segment import HEADER, Footer, body_crc
from kafscale.log.bucket.listing import list_segments
from kafscale.store.base import ObjectStore
from kafscale.store.paths import SegmentKey
from tests.devtools.history import Read
from tests.devtools.workload import read_batches


@attrs.define
class BucketPartition:
    """One partition's records in order of offset, and what is wrong with the objects that hold them."""

    reads: list[Read] = attrs.field(factory=list)
    faults: list[str] = attrs.field(factory=list)


async def read_bucket(
    store: ObjectStore, namespace: str, *, labels: Mapping[bytes, str] | None = None
) -> Mapping[str, BucketPartition]:
    """All partitions, as `topic-index`. No broker may be writing. Raises DamagedObject, StoreError.

    `labels` say by topic id which topics to read, and what to call them instead of their names; without them all but
    internal ones are read.
    """
    found: defaultdict[str, BucketPartition] = defaultdict(BucketPartition)
    for listed in (await list_segments(store, namespace, lambda _: None)).values():
        first = listed[0].key
        label = first.topic if labels is None else labels.get(first.topic_id)
        if label is None or is_internal(label):
            continue
        partition = found[f"{label}-{first.partition}"]
        footers = {each.key: await read_footer(store, each.key) for each in listed}
        segments = [segment_of(key, footer) for key, footer in footers.items()]
        resolution = resolve(segments, {key: footer.epochs for key, footer in footers.items()})
        manifest = Manifest(list(resolution.segments))
        for segment in manifest.segments:
            reads = await _read_segment(store, segment.key, footers[segment.key], partition)
            partition.reads += [read for read in reads if manifest.find(read.offset) is segment]
        partition.reads.sort(key=lambda read: read.offset)
    return found


async def _read_segment(
    store: ObjectStore, key: SegmentKey, footer: Footer, partition: BucketPartition
) -> Sequence[Read]:
    body = memoryview((await store.get(key.key)).data)[HEADER.size : footer.end_position]
    reads = list(read_batches(body))
    if body_crc([body]) != footer.identity.body_crc:
        partition.faults.append(f"{key.key}: wrong CRC of the body")
    held = range(key.base_offset, footer.last_offset + 1)
    offsets = [read.offset for read in reads]
    if offsets != list(held) and not (key.generation and held and set(offsets) < set(held)):
        partition.faults.append(f"{key.key}: offsets are not those of the footer")
    index = await read_index(store, key)
    if index is not None and index != footer:
        partition.faults.append(f"{key.key}: the .index is that of other content")
    return reads
