"""Content and damage of an object or file that KafScale writes: bytes in, an `Inspection` out, no I/O.

Checksums are computed again, and values that are stored twice must agree. All damage is collected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import attrs

from kafscale.buffers import Buffer
from kafscale.cli.output import iso_time
from kafscale.cluster.membership.start.claim import decode_claim
from kafscale.errors import DamagedObject, KafkaError
from kafscale.formats import (
    manifest_checkpoint,
    metadata_checkpoint,
    metadata_head,
    segment,
    segment_v1,
    wal_entries,
    wal_objects,
)
from kafscale.formats.metadata_changes import decode_transaction
from kafscale.formats.segment_check import BodyCheck
from kafscale.formats.transactions import AbortedTransaction, OpenTransaction
from kafscale.log.check.wal_check import WalFileCheck, WalObjectCheck
from kafscale.store.paths import EPOCH_UNKNOWN, SegmentKey, parse_numbered_key, parse_segment_key, topic_id_text
from kafscale.wire.batch_header import MIN_TIMESTAMP_UNKNOWN, BatchHeader
from kafscale.wire.compression import NAMES, NONE
from kafscale.wire.control_records import parse_marker
from kafscale.wire.records import validate, validate_compressed

MAX_DECOMPRESSED_BYTES = 1 << 30  # of one batch, when it is checked


@attrs.frozen
class Fact:
    name: str
    value: str | int


@attrs.frozen(kw_only=True)
class BatchRow:
    """A record batch; `position` is that of its first byte.

    `transaction`: "data" for a batch of a transaction, "commit" or "abort" for a marker, else "".
    """

    position: int
    base_offset: int
    last_offset: int
    records: int
    bytes: int
    codec: str
    max_timestamp: str
    producer_id: int
    leader_epoch: int
    transaction: str


@attrs.frozen(kw_only=True)
class EntryRow(BatchRow):
    topic_id: str
    partition: int


@attrs.frozen(kw_only=True)
class MetadataRow:
    key: str
    value: str


@attrs.define(kw_only=True)
class Inspection:
    """Facts, rows and damage of an object; `aborted` and `open` are transactions in a segment's footer."""

    kind: str
    facts: list[Fact] = attrs.field(factory=list)
    row_class: type[BatchRow | MetadataRow] = BatchRow
    rows: list[BatchRow | MetadataRow] = attrs.field(factory=list)
    damage: list[str] = attrs.field(factory=list)
    aborted: tuple[AbortedTransaction, ...] = ()
    open: tuple[OpenTransaction, ...] = ()

    def add(self, **facts: str | int) -> None:
        self.facts += [Fact(name.replace("_", " "), value) for name, value in facts.items()]

    def expect(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self.damage.append(f"{what} is {found}, not {expected}")


def inspect(data: Buffer, name: str) -> Inspection:
    """Inspect an object or file by its key or path. Raises DamagedObject if its kind is unknown."""
    view = memoryview(data)
    look = _BY_MAGIC.get(bytes(view[:8])) or _BY_MAGIC.get(bytes(view[:4]))
    if look is None and view[-4:] == segment.TRAILER_MAGIC:
        look = _Inspector("index", BatchRow, _inspect_index)
    if look is None and name.endswith("/epoch"):
        look = _Inspector("claim", BatchRow, _inspect_claim)
    if look is None:
        raise DamagedObject(f"{name}: this is not an object of KafScale, or its beginning is damaged")
    if look.kind == "segment" and len(view) < segment.HEADER.size:
        raise DamagedObject(f"{name}: {len(view)} bytes are too few for a header")
    found = Inspection(kind=look.kind, row_class=look.row_class)
    try:
        look.inspect(found, view, name)
    except DamagedObject as exc:
        key = _segment_key(name)
        found.damage.append(str(exc).removeprefix(f"{name}: ").removeprefix(f"{key.key if key else name}: "))
    return found


def _inspect_segment(found: Inspection, view: memoryview, name: str) -> None:
    version = segment.HEADER.unpack_from(view)[1]
    found.add(format_version=version)
    if version == segment_v1.VERSION:
        _inspect_version_1(found, view, name)
        return
    if version not in (segment.VERSION, segment.VERSION_WITH_TRANSACTIONS):
        newest = segment.VERSION_WITH_TRANSACTIONS
        raise DamagedObject(f"format version {version} is not known, only {segment_v1.VERSION} to {newest}")
    footer = _inspect_footer(found, view, name)
    found.expect("the header", bytes(view[: segment.HEADER.size]).hex(), segment.encode_header(footer).hex())
    size_bytes = footer.end_position + segment.footer_bytes_needed(view, name)
    found.expect("the size", len(view), size_bytes)
    _check_body(found, view[segment.HEADER.size : footer.end_position], footer)


def _inspect_version_1(found: Inspection, view: memoryview, name: str) -> None:
    header, trailer = segment_v1.decode_header(view, name), segment_v1.decode_trailer(view, name)
    key = _segment_key(name)
    if key is None:
        key = SegmentKey(topic="unknown", topic_id=bytes(16), partition=0, base_offset=header.base_offset)
    footer = segment_v1.footer_without_index(segment_v1.decode_ends(key, view, view, len(view)))
    if view[: segment.HEADER.size] != segment_v1.encode_header(header):
        found.damage.append("reserved bytes of the header are not empty")
    found.add(
        base_offset=header.base_offset,
        last_offset=trailer.last_offset,
        created=iso_time(header.created_ms),
        records=header.record_count,
        bytes_of_batches=footer.identity.body_bytes,
    )
    _check_body(found, view[segment.HEADER.size : footer.end_position], footer)


def _inspect_version_1_index(found: Inspection, view: memoryview, name: str) -> None:
    found.add(format_version=segment_v1.VERSION)
    entries = segment_v1.decode_index(view, name)
    found.add(index_rows=len(entries), base_offset=entries[0].base_offset)
    if any(b.base_offset <= a.base_offset or b.position <= a.position for a, b in pairwise(entries)):
        found.damage.append("the index is not in order")


def _inspect_index(found: Inspection, view: memoryview, name: str) -> None:
    _inspect_footer(found, view, name)
    found.expect("the size", len(view), segment.footer_bytes_needed(view, name))


def _inspect_footer(found: Inspection, view: memoryview, name: str) -> segment.Footer:
    footer = segment.decode_footer(view, name)
    segment.check_index_order(footer, name)
    *_, reserved, _ = segment.TRAILER.unpack(view[-segment.TRAILER.size :])
    found.expect("the reserved field of the trailer", reserved, 0)
    found.aborted, found.open = footer.aborted, footer.open_transactions
    identity, earliest_ms = footer.identity, footer.index.min_timestamps_ms
    found.add(
        topic_id=topic_id_text(identity.topic_id),
        partition=identity.partition,
        base_offset=identity.base_offset,
        last_offset=footer.last_offset,
        generation=identity.generation,
        leader_epoch=identity.leader_epoch,
        created=iso_time(identity.created_ms),
        batches=identity.batch_count,
        records=footer.record_count,
        bytes_of_batches=identity.body_bytes,
        max_timestamp=iso_time(identity.max_timestamp_ms),
        index_rows=len(footer.index.positions),
        rows_with_an_earliest_time=len(earliest_ms) - earliest_ms.count(MIN_TIMESTAMP_UNKNOWN),
        producers=len(footer.producers),
        aborted_transactions=len(footer.aborted),
        open_transactions=len(footer.open_transactions),
        stable_end=footer.stable_end,
        leader_epochs=", ".join(f"{start.epoch} from {start.start_offset}" for start in footer.epochs) or "none",
    )
    key = _segment_key(name)
    if key is not None:
        epoch = identity.leader_epoch if key.epoch == EPOCH_UNKNOWN else key.epoch
        of_key = (topic_id_text(key.topic_id), key.partition, key.base_offset, epoch, key.generation)
        own = (identity.partition, identity.base_offset, identity.leader_epoch, identity.generation)
        found.expect("the identity in the footer", (topic_id_text(identity.topic_id), *own), of_key)
    return footer


def _segment_key(name: str) -> SegmentKey | None:
    parts = name.split("/")
    return parse_segment_key("/".join(parts[-5:])) or parse_segment_key("/".join(parts[-4:]))


def _check_body(found: Inspection, body: memoryview, footer: segment.Footer) -> None:
    check = BodyCheck(
        footer=footer,
        base_offset=footer.identity.base_offset,
        end=footer.end_position,
        merged=footer.identity.generation > 0,
        check_batch=validated,
        on_batch=lambda header, batch: found.rows.append(batch_row(header, batch.data, batch.position)),
    )
    check.feed(body)
    check.finish()
    found.damage += map(str, check.damage)


def _inspect_wal(found: Inspection, view: memoryview, name: str) -> None:
    check = WalFileCheck(name=name, content=view, check_batch=validated)
    header, topics = check.header, set()
    if header is not None:
        found.add(
            file_number=header.number,
            first_sequence_number=header.sequence,
            created=iso_time(header.created_ms),
            started=_yes(header.started),
        )
        for checked in check.entries():
            if checked.entry.kind == wal_entries.TOPIC_NAME:
                topic = bytes(checked.entry.data).decode(errors="replace")
                found.facts.append(Fact(f"topic {topic}", topic_id_text(checked.entry.topic_id)))
                continue
            topics.add((checked.entry.topic_id, checked.entry.partition))
            if checked.header is not None:
                found.rows.append(_entry_row(checked.entry, checked.header))
        found.add(
            entries=check.next_sequence - header.sequence,
            partitions=len(topics),
            may_have_transactions=_yes(header.has_transactions),
            bytes_in_use=check.end,
            bytes_of_the_file=len(view),
        )
        if check.tail is not None:
            found.add(tail=check.tail)
    elif not check.damage:
        found.damage.append("the file's header is damaged")
    found.damage += map(str, check.damage)


def _inspect_wal_object(found: Inspection, view: memoryview, name: str) -> None:
    key = "/".join(name.split("/")[-5:])  # of the object, in a name that may be a path in a file store
    is_key = parse_numbered_key(key) is not None
    check = WalObjectCheck(name=key if is_key else name, content=view, check_batch=validated)
    header, topics, transactions = check.header, set(), 0
    if header is not None:
        for checked in check.entries():
            if checked.entry.kind == wal_entries.METADATA:
                transactions += 1
                try:
                    decode_transaction(memoryview(checked.entry.data))
                except DamagedObject as exc:
                    found.damage.append(f"the change of metadata at byte {checked.entry.position}: {exc}")
            elif checked.header is not None:
                topics.add((checked.entry.topic_id, checked.entry.partition))
                found.rows.append(_entry_row(checked.entry, checked.header))
        found.add(
            is_a_fence=_yes(header.is_fence),
            epoch=header.epoch,
            number=header.number,
            acknowledged_up_to_number=header.durable_number,
            first_sequence_number=header.sequence,
            entries=header.entry_count,
            changes_of_metadata=transactions,
            partitions=len(topics),
            has_transactions=_yes(header.has_transactions),
            bytes_of_entries=header.body_bytes,
        )
    found.damage += map(str, check.damage)


def _inspect_checkpoint(found: Inspection, view: memoryview, name: str) -> None:
    read = metadata_checkpoint.decode_checkpoint(name, view)
    puts = read.transaction.puts
    found.add(log_epoch=read.position.epoch, log_number=read.position.number)
    if read.base is not None:
        found.add(
            changes_since_checkpoint_number=read.base,
            deleted=len(read.transaction.deletes),
            deleted_prefixes=len(read.transaction.delete_prefixes),
        )
    found.add(entries=len(puts), bytes=len(view))
    for kind, count in sorted(Counter(key.partition("/")[0] for key in puts).items()):
        found.facts.append(Fact(f"entries of {kind}", count))
    found.rows += [MetadataRow(key=key, value=value.decode(errors="replace")) for key, value in sorted(puts.items())]


def _inspect_head(found: Inspection, view: memoryview, name: str) -> None:
    read = metadata_head.decode_head(name, view)
    transactions = [decode_transaction(memoryview(entry.data)) for entry in read.entries]
    found.add(epoch=read.epoch, kept_until_revision=read.kept_until, entries=len(read.entries), bytes=len(view))
    if read.claim is not None:
        found.add(ended_by_the_claim=read.claim.decode(errors="replace"))
    for transaction in transactions:
        found.rows += [
            MetadataRow(key=key, value=value.decode(errors="replace")) for key, value in transaction.puts.items()
        ]


def _inspect_manifests(found: Inspection, view: memoryview, name: str) -> None:
    read = manifest_checkpoint.decode_manifests(name, view)
    segment_count = sum(known.segment_count for known in read.values())
    found.add(partitions=len(read), segments=segment_count, bytes=len(view))


def _inspect_claim(found: Inspection, view: memoryview, name: str) -> None:
    for field, value in attrs.asdict(decode_claim(name, view)).items():
        found.add(**{field: _yes(value) if isinstance(value, bool) else value})


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _entry_row(entry: wal_entries.WalEntry, header: BatchHeader) -> EntryRow:
    row = batch_row(header, memoryview(entry.data), entry.position)
    return EntryRow(**attrs.asdict(row), topic_id=topic_id_text(entry.topic_id), partition=entry.partition)


def validated(batch: memoryview) -> BatchHeader:
    """Return the header of a valid batch. Raises KafkaError."""
    header = validate(batch)
    if header.codec != NONE:
        validate_compressed(batch, header, MAX_DECOMPRESSED_BYTES)
    return header


def batch_row(header: BatchHeader, batch: memoryview, position: int) -> BatchRow:
    return BatchRow(
        position=position,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        records=header.record_count,
        bytes=header.size_bytes,
        codec=NAMES[header.codec],
        max_timestamp=iso_time(header.max_timestamp_ms),
        producer_id=header.producer_id,
        leader_epoch=header.leader_epoch,
        transaction=_in_transaction(header, batch),
    )


def _in_transaction(header: BatchHeader, batch: memoryview) -> str:
    if not header.is_control:
        return "data" if header.is_transactional else ""
    try:
        marker = parse_marker(batch, header)
    except KafkaError:
        return "unreadable marker"
    if marker is None:
        return "emptied marker" if not header.record_count else "other marker"
    return "commit" if marker.is_commit else "abort"


@attrs.frozen
class _Inspector:
    kind: str
    row_class: type[BatchRow | MetadataRow]
    inspect: Callable[[Inspection, memoryview, str], None]


_BY_MAGIC: dict[bytes, _Inspector] = {
    wal_entries.FILE_MAGIC: _Inspector("WAL file", EntryRow, _inspect_wal),
    wal_objects.MAGIC: _Inspector("WAL object", EntryRow, _inspect_wal_object),
    metadata_checkpoint.MAGIC: _Inspector("checkpoint", MetadataRow, _inspect_checkpoint),
    metadata_head.MAGIC: _Inspector("head of the metadata", MetadataRow, _inspect_head),
    manifest_checkpoint.MAGIC: _Inspector("checkpoint of the manifests", BatchRow, _inspect_manifests),
    segment.HEADER_MAGIC: _Inspector("segment", BatchRow, _inspect_segment),
    segment_v1.INDEX_MAGIC: _Inspector("index", BatchRow, _inspect_version_1_index),
}
