"""What is in an object or a file of KafScale's, and whether it is whole: bytes in, findings out, no I/O.

Every checksum is computed anew, and what is written twice must agree: header with footer, footer with batches, index
with where the batches are. Findings are gathered, not raised, so that one look shows all that is wrong.
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
    """One line of the summary."""

    name: str
    value: str | int


@attrs.frozen(kw_only=True)
class BatchRow:
    """One record batch; `position` is that of its first byte.

    `transaction` is "data" for one that is part of a transaction, "commit" or "abort" for a marker, else "".
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
    """One record batch in a WAL file, where those of all partitions are together."""

    topic_id: str
    partition: int


@attrs.frozen(kw_only=True)
class MetadataRow:
    """One entry of a checkpoint."""

    key: str
    value: str


@attrs.define(kw_only=True)
class Inspection:
    """What was found. It is whole if `damage` is empty. `aborted` and `open` are the transactions that a footer has."""

    kind: str
    facts: list[Fact] = attrs.field(factory=list)
    row_class: type[BatchRow | MetadataRow] = BatchRow
    rows: list[BatchRow | MetadataRow] = attrs.field(factory=list)
    damage: list[str] = attrs.field(factory=list)
    aborted: tuple[AbortedTransaction, ...] = ()
    open: tuple[OpenTransaction, ...] = ()

    def add(self, name: str, value: str | int) -> None:
        self.facts.append(Fact(name, value))

    def damaged(self, exc: DamagedObject, *names: str) -> Inspection:
        """Note what a decoder tells, but for the name of the object that it begins with, and give this back."""
        told = str(exc)
        for name in names:
            told = told.removeprefix(f"{name}: ")
        self.damage.append(told)
        return self

    def expect(self, what: str, found: object, expected: object) -> None:
        """Note damage unless two things that must agree do."""
        if found != expected:
            self.damage.append(f"{what} is {found}, not {expected}")


def inspect(data: Buffer, name: str) -> Inspection:
    """Look at an object or file by what is in it; `name` is its key or path. Raises DamagedObject if it is none."""
    view = memoryview(data)
    look = _BY_MAGIC.get(bytes(view[:8])) or _BY_MAGIC.get(bytes(view[:4]))
    if look is None and view[-4:] == segment.TRAILER_MAGIC:
        look = _inspect_index
    if look is None and name.endswith("/epoch"):
        look = _inspect_claim
    if look is None:
        raise DamagedObject(f"{name}: is nothing that KafScale writes, or its beginning is damaged")
    return look(view, name)


def _inspect_segment(view: memoryview, name: str) -> Inspection:
    found = Inspection(kind="segment")
    if len(view) < segment.HEADER.size:
        raise DamagedObject(f"{name}: {len(view)} bytes are too few for a header")
    version = segment.HEADER.unpack_from(view)[1]
    found.add("format version", version)
    if version == segment_v1.VERSION:
        return _inspect_version_1(found, view, name)
    if version not in (segment.VERSION, segment.VERSION_WITH_TRANSACTIONS):
        newest = segment.VERSION_WITH_TRANSACTIONS
        found.damage.append(f"format version {version} is not known, only {segment_v1.VERSION} to {newest}")
        return found
    footer = _footer(found, view, name)
    if footer is None:
        return found
    found.expect("the header", bytes(view[: segment.HEADER.size]).hex(), segment.encode_header(footer).hex())
    size_bytes = footer.end_position + segment.footer_bytes_needed(view, name)
    found.expect("the size", len(view), size_bytes)
    _check_body(found, view[segment.HEADER.size : footer.end_position], footer)
    return found


def _inspect_version_1(found: Inspection, view: memoryview, name: str) -> Inspection:
    key = _segment_key(name)
    try:
        header, trailer = segment_v1.decode_header(view, name), segment_v1.decode_trailer(view, name)
        if key is None:
            key = SegmentKey(topic="unknown", topic_id=bytes(16), partition=0, base_offset=header.base_offset)
        footer = segment_v1.footer_without_index(segment_v1.decode_ends(key, view, view, len(view)))
    except DamagedObject as exc:
        return found.damaged(exc, name, key.key if key else name)
    if view[: segment.HEADER.size] != segment_v1.encode_header(header):
        found.damage.append("the header has something where version 1 has nothing")
    for fact, value in (
        ("base offset", header.base_offset),
        ("last offset", trailer.last_offset),
        ("created", iso_time(header.created_ms)),
        ("records", header.record_count),
        ("bytes of batches", footer.identity.body_bytes),
    ):
        found.add(fact, value)
    _check_body(found, view[segment.HEADER.size : footer.end_position], footer)
    return found


def _inspect_version_1_index(view: memoryview, name: str) -> Inspection:
    found = Inspection(kind="index")
    found.add("format version", segment_v1.VERSION)
    try:
        entries = segment_v1.decode_index(view, name)
    except DamagedObject as exc:
        return found.damaged(exc, name)
    found.add("index rows", len(entries))
    found.add("base offset", entries[0].base_offset)
    if any(b.base_offset <= a.base_offset or b.position <= a.position for a, b in pairwise(entries)):
        found.damage.append("the index is not in order")
    return found


def _inspect_index(view: memoryview, name: str) -> Inspection:
    found = Inspection(kind="index")
    footer = _footer(found, view, name)
    if footer is not None:
        found.expect("the size", len(view), segment.footer_bytes_needed(view, name))
    return found


def _footer(found: Inspection, view: memoryview, name: str) -> segment.Footer | None:
    try:
        footer = segment.decode_footer(view, name)
        segment.check_index_order(footer, name)
    except DamagedObject as exc:
        found.damaged(exc, name)
        return None
    *_, reserved, _ = segment.TRAILER.unpack(view[-segment.TRAILER.size :])
    found.expect("what the trailer keeps free", reserved, 0)
    found.aborted, found.open = footer.aborted, footer.open_transactions
    identity, earliest_ms = footer.identity, footer.index.min_timestamps_ms
    for fact, value in (
        ("topic id", topic_id_text(identity.topic_id)),
        ("partition", identity.partition),
        ("base offset", identity.base_offset),
        ("last offset", footer.last_offset),
        ("generation", identity.generation),
        ("leader epoch", identity.leader_epoch),
        ("created", iso_time(identity.created_ms)),
        ("batches", identity.batch_count),
        ("records", footer.record_count),
        ("bytes of batches", identity.body_bytes),
        ("max timestamp", iso_time(identity.max_timestamp_ms)),
        ("index rows", len(footer.index.positions)),
        ("rows with an earliest time", len(earliest_ms) - earliest_ms.count(MIN_TIMESTAMP_UNKNOWN)),
        ("producers", len(footer.producers)),
        ("aborted transactions", len(footer.aborted)),
        ("open transactions", len(footer.open_transactions)),
        ("stable end", footer.stable_end),
        ("leader epochs", ", ".join(f"{each.epoch} from {each.start_offset}" for each in footer.epochs) or "none"),
    ):
        found.add(fact, value)
    key = _segment_key(name)
    if key is not None:
        epoch = identity.leader_epoch if key.epoch == EPOCH_UNKNOWN else key.epoch
        told = (topic_id_text(key.topic_id), key.partition, key.base_offset, epoch, key.generation)
        own = (identity.partition, identity.base_offset, identity.leader_epoch, identity.generation)
        found.expect("what it says of itself", (topic_id_text(identity.topic_id), *own), told)
    return footer


def _segment_key(name: str) -> SegmentKey | None:
    """Return what a key says, also at the end of the path of a file store."""
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


def _inspect_wal(view: memoryview, name: str) -> Inspection:
    found = Inspection(kind="WAL file", row_class=EntryRow)
    check = WalFileCheck(name=name, content=view, check_batch=validated)
    header, topics = check.header, set()
    if header is not None:
        found.add("file number", header.number)
        found.add("first sequence number", header.sequence)
        found.add("created", iso_time(header.created_ms))
        found.add("started", "yes" if header.started else "no")
        for checked in check.entries():
            if checked.entry.kind == wal_entries.TOPIC_NAME:
                name = bytes(checked.entry.data).decode(errors="replace")
                found.add(f"topic {name}", topic_id_text(checked.entry.topic_id))
                continue
            topics.add((checked.entry.topic_id, checked.entry.partition))
            if checked.header is not None:
                found.rows.append(_entry_row(checked.entry, checked.header))
        found.add("entries", check.next_sequence - header.sequence)
        found.add("partitions", len(topics))
        found.add("may have transactions", "yes" if header.has_transactions else "no")
        found.add("bytes in use", check.end)
        found.add("bytes of the file", len(view))
        if check.tail is not None:
            found.add("tail", check.tail)
    elif not check.damage:
        found.damage.append("the file's header is damaged")
    found.damage += map(str, check.damage)
    return found


def _inspect_wal_object(view: memoryview, name: str) -> Inspection:
    found = Inspection(kind="WAL object", row_class=EntryRow)
    check = WalObjectCheck(name=_own_key(name), content=view, check_batch=validated)
    header, topics, transactions = check.header, set(), 0
    if header is not None:
        for checked in check.entries():
            if checked.entry.kind == wal_entries.METADATA:
                transactions += 1
                _inspect_transaction(found, checked.entry)
            elif checked.header is not None:
                topics.add((checked.entry.topic_id, checked.entry.partition))
                found.rows.append(_entry_row(checked.entry, checked.header))
        for fact, value in (
            ("is a fence", "yes" if header.is_fence else "no"),
            ("epoch", header.epoch),
            ("number", header.number),
            ("acknowledged up to number", header.durable_number),
            ("first sequence number", header.sequence),
            ("entries", header.entry_count),
            ("changes of metadata", transactions),
            ("partitions", len(topics)),
            ("has transactions", "yes" if header.has_transactions else "no"),
            ("bytes of entries", header.body_bytes),
        ):
            found.add(fact, value)
    found.damage += map(str, check.damage)
    return found


def _inspect_transaction(found: Inspection, entry: wal_entries.WalEntry) -> None:
    try:
        decode_transaction(memoryview(entry.data))
    except DamagedObject as exc:
        found.damage.append(f"the change of metadata at byte {entry.position}: {exc}")


def _inspect_checkpoint(view: memoryview, name: str) -> Inspection:
    found = Inspection(kind="checkpoint", row_class=MetadataRow)
    try:
        read = metadata_checkpoint.decode_checkpoint(name, view)
    except DamagedObject as exc:
        return found.damaged(exc, name)
    puts = read.transaction.puts
    found.add("log epoch", read.position.epoch)
    found.add("log number", read.position.number)
    if read.base is not None:
        found.add("changes since checkpoint number", read.base)
        found.add("deleted", len(read.transaction.deletes))
        found.add("deleted prefixes", len(read.transaction.delete_prefixes))
    found.add("entries", len(puts))
    found.add("bytes", len(view))
    for kind, count in sorted(Counter(key.partition("/")[0] for key in puts).items()):
        found.add(f"entries of {kind}", count)
    found.rows += [MetadataRow(key=key, value=value.decode(errors="replace")) for key, value in sorted(puts.items())]
    return found


def _inspect_head(view: memoryview, name: str) -> Inspection:
    found = Inspection(kind="head of the metadata", row_class=MetadataRow)
    try:
        read = metadata_head.decode_head(name, view)
        transactions = [decode_transaction(memoryview(entry.data)) for entry in read.entries]
    except DamagedObject as exc:
        return found.damaged(exc, name)
    found.add("epoch", read.epoch)
    found.add("kept until revision", read.kept_until)
    found.add("entries", len(read.entries))
    found.add("bytes", len(view))
    if read.claim is not None:
        found.add("ended by the claim", read.claim.decode(errors="replace"))
    for each in transactions:
        found.rows += [MetadataRow(key=key, value=value.decode(errors="replace")) for key, value in each.puts.items()]
    return found


def _inspect_manifests(view: memoryview, name: str) -> Inspection:
    found = Inspection(kind="checkpoint of the manifests")
    try:
        read = manifest_checkpoint.decode_manifests(name, view)
    except DamagedObject as exc:
        return found.damaged(exc, name)
    found.add("partitions", len(read))
    found.add("segments", sum(known.segment_count for known in read.values()))
    found.add("bytes", len(view))
    return found


def _inspect_claim(view: memoryview, name: str) -> Inspection:
    found = Inspection(kind="claim")
    try:
        claim = decode_claim(name, view)
    except DamagedObject as exc:
        return found.damaged(exc, name)
    for field, value in attrs.asdict(claim).items():
        found.add(field.replace("_", " "), ("yes" if value else "no") if isinstance(value, bool) else value)
    return found


def _own_key(name: str) -> str:
    """The key of a WAL object, also at the end of the path of a file store."""
    key = "/".join(name.split("/")[-5:])
    return key if parse_numbered_key(key) is not None else name


def _entry_row(entry: wal_entries.WalEntry, header: BatchHeader) -> EntryRow:
    row = batch_row(header, memoryview(entry.data), entry.position)
    return EntryRow(**attrs.asdict(row), topic_id=topic_id_text(entry.topic_id), partition=entry.partition)


def validated(batch: memoryview) -> BatchHeader:
    """The header of a batch that is whole, compressed or not. Raises KafkaError."""
    header = validate(batch)
    if header.codec != NONE:
        validate_compressed(batch, header, MAX_DECOMPRESSED_BYTES)
    return header


def batch_row(header: BatchHeader, batch: memoryview, position: int) -> BatchRow:
    """Return the row by which a batch is shown."""
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


_BY_MAGIC: dict[bytes, Callable[[memoryview, str], Inspection]] = {
    wal_entries.FILE_MAGIC: _inspect_wal,
    wal_objects.MAGIC: _inspect_wal_object,
    metadata_checkpoint.MAGIC: _inspect_checkpoint,
    metadata_head.MAGIC: _inspect_head,
    manifest_checkpoint.MAGIC: _inspect_manifests,
    segment.HEADER_MAGIC: _inspect_segment,
    segment_v1.INDEX_MAGIC: _inspect_version_1_index,
}
