"""Content of a bucket: every segment decoded and checked, as a reader without a broker sees it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from kafscale.cluster.registries.topic_names import is_internal
from kafscale.formats.footer_reading import read_footer, read_index
from kafscale.formats.manifest import Manifest, PartitionId, segment_of
from kafscale.formats.manifest_checkpoint import decode_manifests
from kafscale.formats.resolution import NOTHING_DECIDED, resolve
from kafscale.formats.segment import HEADER, EpochStart, Footer, body_crc
from kafscale.formats.transactions import AbortedTransaction
from kafscale.log.bucket.listing import list_segments
from kafscale.store.base import ObjectStore
from kafscale.store.paths import SegmentKey
from kafscale.store.versions import find_versions
from kafscale.wire.batch_header import batches, parse_header
from kafscale.wire.control_records import parse_marker
from tests.devtools.history.history import Read
from tests.devtools.world.workload import marker_offsets, read_batches


@attrs.frozen(eq=False)
class BucketSegment:
    footer: Footer
    batches: Sequence[memoryview]

    @property
    def is_whole(self) -> bool:
        """Tell whether it still has all batches that it was written with."""
        ends = [self.footer.identity.base_offset, *(parse_header(batch).last_offset + 1 for batch in self.batches)]
        begins = [*(parse_header(batch).base_offset for batch in self.batches), self.footer.last_offset + 1]
        return begins == ends


@attrs.define
class BucketPartition:
    """One partition's records in order of offset, and faults of the objects that hold them."""

    reads: list[Read] = attrs.field(factory=list)
    segments: list[BucketSegment] = attrs.field(factory=list)
    faults: list[str] = attrs.field(factory=list)

    @property
    def batches(self) -> Iterator[memoryview]:
        return (batch for segment in self.segments for batch in segment.batches)

    def settled(self, *, high_watermark: int, leader_epoch: int) -> Sequence[Read]:
        """Return the records that no upload under way can replace.

        The newest broker led with `leader_epoch` and knew the log up to `high_watermark`. A late segment of an earlier
        broker behind that is the log only until the newest broker flushes at these offsets.
        """
        return [read for read in self.reads if read.offset < high_watermark or read.leader_epoch >= leader_epoch]


async def read_bucket(
    store: ObjectStore,
    namespace: str,
    *,
    labels: Mapping[bytes, str] | None = None,
    begun: Callable[[PartitionId], Sequence[EpochStart]] = lambda partition_id: (),
) -> Mapping[str, BucketPartition]:
    """Return all partitions, as `topic-index`. No broker may be writing. Raises DamagedObject, StoreError.

    `labels` say by topic id which topics to read, and how to call them; by default all but internal topics are read.
    `begun` gives the epoch starts of each partition, as `resolve` wants them.
    """
    decisions = (await find_versions(store, namespace, "manifests", decode_manifests)).newest or {}
    found: defaultdict[str, BucketPartition] = defaultdict(BucketPartition)
    for listed in (await list_segments(store, namespace, lambda _: None)).values():
        first = listed[0].key
        label = first.topic if labels is None else labels.get(first.topic_id)
        if label is None or is_internal(label):
            continue
        partition = found[f"{label}-{first.partition}"]
        footers = {info.key: await read_footer(store, info.key) for info in listed}
        segments = [segment_of(key, footer) for key, footer in footers.items()]
        known = decisions.get((first.topic_id, first.partition))
        resolution = resolve(
            segments,
            {key: footer.epochs for key, footer in footers.items()},
            begun=begun((first.topic_id, first.partition)),
            decided=NOTHING_DECIDED if known is None else known.decided(footers),
        )
        manifest = Manifest(list(resolution.segments))
        for segment in manifest.segments:
            data = await _read_segment(store, segment.key, footers[segment.key], partition)
            kept = [batch for batch in data if manifest.find(parse_header(batch).base_offset) is segment]
            partition.segments.append(BucketSegment(footers[segment.key], kept))
            partition.reads += [read for read in read_batches(kept) if manifest.find(read.offset) is segment]
        partition.reads.sort(key=lambda read: read.offset)
    return found


async def _read_segment(
    store: ObjectStore, key: SegmentKey, footer: Footer, partition: BucketPartition
) -> Sequence[memoryview]:
    body = memoryview((await store.get(key.key)).data)[HEADER.size : footer.end_position]
    data = list(batches(body))
    if body_crc([body]) != footer.identity.body_crc:
        partition.faults.append(f"{key.key}: wrong CRC of the body")
    held = range(key.base_offset, footer.last_offset + 1)
    offsets = sorted([*(read.offset for read in read_batches(data)), *marker_offsets(data)])
    if offsets != list(held) and not (key.generation and held and set(offsets) < set(held)):
        partition.faults.append(f"{key.key}: offsets are not those of the footer")
    index = await read_index(store, key)
    if index is not None and index != footer:
        partition.faults.append(f"{key.key}: the .index is that of other content")
    return data


def transaction_faults(
    segments: Sequence[BucketSegment], *, log_start_offset: int = 0, may_be_open: bool = False
) -> Iterator[str]:
    """Return the faults of a partition's segments, which are in order, about transactions.

    A marker that aborts a transaction with batches here is in the footer of its segment, with their first offset or
    less; an aborted transaction of a footer has such a marker; a footer names the open transactions at its end.

    Independent of `kafscale.log.repair.verify_transactions`: it uses the batches of the whole partition. Compaction
    removes batches, so of segments with holes only the first rule is checked.

    log_start_offset: segments wholly below it are ignored. A superseded segment may await its deletion there, when the
    markers have gone with the segment that was read in its place.
    may_be_open: transactions that are open at the very end are allowed.
    """
    segments = [segment for segment in segments if segment.footer.last_offset >= log_start_offset]
    begun: dict[int, int] = {}  # producer: where its open transaction has its first batch here
    has_holes = False
    for segment in segments:
        footer = segment.footer
        told = {(aborted.producer_id, aborted.marker_offset): aborted for aborted in footer.aborted}
        has_holes = has_holes or not segment.is_whole
        yield from _one(segment, begun, told)
        if not has_holes:
            yield from (f"no marker aborts {aborted}" for aborted in told.values())
            is_open = {
                open_transaction.producer_id: open_transaction.first_offset
                for open_transaction in footer.open_transactions
            }
            later = {producer: first for producer, first in begun.items() if is_open.get(producer, first + 1) > first}
            closed = is_open.keys() - begun.keys() if segments[0].footer.identity.base_offset == 0 else set()
            if later or closed:
                yield f"open at {footer.last_offset} are {begun}, the footer says {is_open}"
    if begun and not may_be_open:
        yield f"transactions that never end: {begun}"


def _one(
    segment: BucketSegment, begun: dict[int, int], told: dict[tuple[int, int], AbortedTransaction]
) -> Iterator[str]:
    for batch in segment.batches:
        header = parse_header(batch)
        if not header.is_control:
            if header.is_transactional:
                begun.setdefault(header.producer_id, header.base_offset)
            continue
        first = begun.pop(header.producer_id, None)
        marker = parse_marker(batch, header)
        entry = told.pop((header.producer_id, header.base_offset), None)
        if marker is None:
            continue  # compaction has emptied it
        if marker.is_commit and entry is not None:
            yield f"{entry} was committed"
        if not marker.is_commit and first is not None and (entry is None or entry.first_offset > first):
            yield f"the marker at {header.base_offset} aborts from {first} on, the footer says {entry}"
