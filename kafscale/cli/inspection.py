"""What is in a `.kfs`, an `.index` or a file of the WAL, and whether it is whole: bytes in, findings out, no I/O.

Every checksum is computed anew, and what is written twice must agree: header with footer, footer with batches, index
with where the batches are. Findings are gathered, not raised, so that one look shows all that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from kafscale.cli.output import iso_time
from kafscale.errors import DamagedObject, KafkaError
from kafscale.log import segment, wal_format
from kafscale.store.base import Buffer
from kafscale.store.paths import SegmentKey, parse_segment_key, topic_id_text
from kafscale.wire.compression import NAMES, NONE
from kafscale.wire.records import BatchHeader, batches, validate, validate_compressed

MAX_DECOMPRESSED_BYTES = 1 << 30  # of one batch, when it is checked


@attrs.frozen
class Fact:
    """One line of the summary."""

    name: str
    value: str | int


@attrs.frozen(kw_only=True)
class BatchRow:
    """One record batch; `position` is that of its first byte."""

    position: int
    base_offset: int
    last_offset: int
    records: int
    bytes: int
    codec: str
    max_timestamp: str
    producer_id: int
    leader_epoch: int


@attrs.frozen(kw_only=True)
class EntryRow(BatchRow):
    """One record batch in a WAL file, where those of all partitions are together."""

    topic_id: str
    partition: int


@attrs.define(kw_only=True)
class Inspection:
    """What was found. It is whole if `damage` is empty."""

    kind: str
    facts: list[Fact] = attrs.field(factory=list)
    row_class: type[BatchRow] = BatchRow
    rows: list[BatchRow] = attrs.field(factory=list)
    damage: list[str] = attrs.field(factory=list)

    def add(self, name: str, value: str | int) -> None:
        self.facts.append(Fact(name, value))

    def expect(self, what: str, found: object, expected: object) -> None:
        """Note damage unless two things that must agree do."""
        if found != expected:
            self.damage.append(f"{what} is {found}, not {expected}")


def inspect(data: Buffer, name: str) -> Inspection:
    """Look at an object or file by what is in it; `name` is its key or path. Raises DamagedObject if it is none."""
    view = memoryview(data)
    if view[:4] == segment.HEADER_MAGIC and view[:8] != wal_format.FILE_MAGIC:
        return _inspect_segment(view, name)
    if view[:8] == wal_format.FILE_MAGIC:
        return _inspect_wal(view, name)
    if view[-4:] == segment.TRAILER_MAGIC:
        return _inspect_index(view, name)
    raise DamagedObject(f"{name}: neither a segment, nor an index, nor a file of the WAL; or its beginning is damaged")


def _inspect_segment(view: memoryview, name: str) -> Inspection:
    found = Inspection(kind="segment")
    if len(view) < segment.HEADER.size:
        raise DamagedObject(f"{name}: {len(view)} bytes are too few for a header")
    version = segment.HEADER.unpack_from(view)[1]
    found.add("format version", version)
    if version != segment.VERSION:
        found.damage.append(f"format version {version} is not known, only {segment.VERSION}")
        return found
    footer = _footer(found, view, name)
    if footer is None:
        return found
    identity = footer.identity
    found.expect("the header", bytes(view[: segment.HEADER.size]).hex(), segment.encode_header(footer).hex())
    size_bytes = footer.end_position + segment.footer_bytes_needed(view, name)
    found.expect("the size", len(view), size_bytes)
    body = view[segment.HEADER.size : footer.end_position]
    found.expect("the batches' CRC-32C", f"{segment.body_crc([body]):#010x}", f"{identity.body_crc:#010x}")
    _check_body(found, body, footer)
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
        found.damage.append(str(exc).removeprefix(f"{name}: "))
        return None
    *_, reserved, _ = segment.TRAILER.unpack(view[-segment.TRAILER.size :])
    found.expect("what the trailer keeps free", reserved, 0)
    identity = footer.identity
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
        ("producers", len(footer.producers)),
        ("leader epochs", ", ".join(f"{each.epoch} from {each.start_offset}" for each in footer.epochs) or "none"),
    ):
        found.add(fact, value)
    key = _segment_key(name)
    if key is not None:
        told = (topic_id_text(key.topic_id), key.partition, key.base_offset, key.generation)
        written = (topic_id_text(identity.topic_id), identity.partition, identity.base_offset, identity.generation)
        found.expect("what it says of itself", written, told)
    return footer


def _segment_key(name: str) -> SegmentKey | None:
    """What a key says, also at the end of the path of a file store."""
    return parse_segment_key("/".join(name.split("/")[-5:]))


def _check_body(found: Inspection, body: memoryview, footer: segment.Footer) -> None:
    position, next_offset, record_count, max_timestamp_ms = segment.HEADER.size, footer.identity.base_offset, 0, -1
    starts: dict[int, int] = {}
    try:
        for batch in batches(body):
            header = validated(batch)
            if header.base_offset < next_offset:
                found.damage.append(f"the batch at byte {position} goes back to offset {header.base_offset}")
            starts[position] = header.base_offset
            found.rows.append(batch_row(header, position))
            next_offset, position = header.next_offset, position + len(batch)
            record_count += header.last_offset_delta + 1
            max_timestamp_ms = max(max_timestamp_ms, header.max_timestamp_ms)
    except KafkaError as exc:
        found.damage.append(f"the batch at byte {position}: {exc}")
        return
    found.expect("the number of batches", len(starts), footer.identity.batch_count)
    found.expect("the last offset", next_offset - 1, footer.last_offset)
    found.expect("the number of records", record_count, footer.record_count)
    found.expect("the greatest timestamp", max_timestamp_ms, footer.identity.max_timestamp_ms)
    for row_offset, row_position in zip(footer.index.base_offsets, footer.index.positions, strict=True):
        found.expect(f"the batch at byte {row_position}", starts.get(row_position), row_offset)


def _inspect_wal(view: memoryview, name: str) -> Inspection:
    found = Inspection(kind="WAL file", row_class=EntryRow)
    header = wal_format.decode_file_header(name, view)
    if header is None:
        found.damage.append("the file's header is damaged")
        return found
    found.add("file number", header.number)
    found.add("first sequence number", header.sequence)
    found.add("created", iso_time(header.created_ms))
    found.add("started", "yes" if header.started else "no")
    end, sequence, topics = wal_format.FILE_HEADER_BYTES, header.sequence, set()
    for entry in wal_format.scan(view, end, salt=header.salt):
        found.expect(f"the sequence number of the entry at byte {end}", entry.sequence, sequence)
        end, sequence = entry.end, sequence + 1
        topics.add((entry.topic_id, entry.partition))
        found.rows += _entry_rows(found, entry)
    found.add("entries", sequence - header.sequence)
    found.add("partitions", len(topics))
    found.add("bytes in use", end)
    found.add("bytes of the file", len(view))
    _check_tail(found, bytes(view[end:]), sequence, header.salt)
    return found


def _entry_rows(found: Inspection, entry: wal_format.WalEntry) -> Iterator[EntryRow]:
    data = memoryview(entry.data)
    try:
        header = validated(data)
    except KafkaError as exc:
        found.damage.append(f"the batch at byte {entry.position}: {exc}")
        return
    found.expect(f"the base offset of the batch at byte {entry.position}", header.base_offset, entry.base_offset)
    topic_id = topic_id_text(entry.topic_id)
    row = batch_row(header, entry.position)
    yield EntryRow(**attrs.asdict(row), topic_id=topic_id, partition=entry.partition)


def _check_tail(found: Inspection, tail: bytes, sequence: int, salt: int) -> None:
    """What follows the last good entry: zeros, or the rest of a write that was never acknowledged, or damage."""
    if wal_format.is_zero(tail, 0):
        found.add("tail", "clean")
    elif wal_format.find_proof(tail, 0, sequence=sequence, salt=salt) is None:
        found.add("tail", "torn: a write that was never acknowledged is cut off at the next start")
    else:
        found.damage.append(f"entry {sequence} was acknowledged and is damaged")


def validated(batch: memoryview) -> BatchHeader:
    """The header of a batch that is whole, compressed or not. Raises KafkaError."""
    header = validate(batch)
    if header.codec != NONE:
        validate_compressed(batch, header, MAX_DECOMPRESSED_BYTES)
    return header


def batch_row(header: BatchHeader, position: int) -> BatchRow:
    """How a batch is shown."""
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
    )
