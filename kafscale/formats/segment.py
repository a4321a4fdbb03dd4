"""The segment format, versions 2 and 3: encode, decode, verify. Sans-IO. Everything is big-endian.

    .kfs   = header | record batches | footer | trailer
    .index = footer | trailer                                  (the same bytes as at the end of the .kfs)

    header   32 bytes   "KAFS" | u16 version | u16 flags = 0 | i64 base offset | i32 batch count
                        | i64 created ms | u32 0                (the layout of version 1, so one look tells them apart)
    footer   sections   u16 kind | u16 version | u32 length | u32 CRC-32C of the payload | payload
    trailer  32 bytes   u32 footer length | u32 CRC-32C of the footer and of the trailer without this field
                        | i64 last offset | i64 record count | u16 version | u16 0 | "KFE2"

Sections: identity (1), index (2), producers (3), leader epochs (4), in what compaction wrote, compaction (5), aborted
transactions (6) and open ones (7) if there are any, coordinator epochs of producers (8), and, where its writer knows
them, rows of the index that may have a marker of a transaction (9), and the earliest times of rows (10). A reader skips
kinds that it does not know, so later versions can add some; a known kind in a newer version is refused. The index has a
row per batch, or per ~size/1024 bytes where there are more than 1,024, so that a footer of a 64 MiB segment fits into
the one GET of the last 64 KiB.

The version is 3 if there is a section 6 or 7, and else 2: who does not know these would take records that were aborted,
or are not committed yet, for all others. Version 3 has a 3 in the header and version 2 of the section of leader epochs,
which is as version 1. The trailer has a 2: earlier versions take another one for damage and leave the segment out, but
a section that they know in a newer version tells them, and their users, to start a newer KafScale.

    aborted transactions   those whose marker is in this segment, in order of it; as in `kafscale.formats.transactions`
    open transactions      those that have no marker up to the end of this segment, in order of their first offset
    coordinator epochs     of the producers in section 3, where a marker has told one
    rows with markers      u32 row of the index, in order; in a row that is not named, each offset is that of a record
    earliest times         i64 of each row of the index, the least timestamp of its records, -1 among them; -2^63 if it
                           is not known, as of batches that were replayed from the log, or that compaction has made

    producers, version 1   producers                                   all that there are after the last batch
    producers, version 2   i64 producers from | producers              some: those that wrote here, and a few others
    producer               i64 id | i16 epoch | i64 last heard of, ms | u8 count | batches
    batch of one           i32 first sequence | i32 last sequence | i64 base offset | i64 last offset

Version 2 is written only where a partition has more producers than a footer should hold. The state of all of them is in
the footers of the segments that hold the offset `producers from` or come after it; of one that is in several, the
latest holds. A reader that knows only version 1 refuses it, and does not take some for all.

Offsets of a compacted segment have holes. It keeps the base offset of its sources and its last batch; a row of
the index begins where the one before it ends, so that an offset in a hole finds the row with the next batch.

The footer makes a `.kfs` self-contained: its `.index` can be lost, and is rebuilt from it.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from sys import byteorder
from typing import Protocol

import attrs
from crc32c import crc32c

from kafscale.buffers import Buffer
from kafscale.errors import DamagedObject, NewerVersion
from kafscale.formats.transactions import (
    AbortedTransaction,
    OpenTransaction,
    ProducedBatch,
    Producer,
    decode_aborted,
    decode_coordinators,
    decode_open,
    encode_aborted,
    encode_coordinators,
    encode_open,
    stable_end,
    with_coordinators,
)
from kafscale.wire.batch_header import MIN_TIMESTAMP_UNKNOWN

VERSION = 2
VERSION_WITH_TRANSACTIONS = 3
HEADER = struct.Struct(">4sHHqiqI")
HEADER_MAGIC = b"KAFS"
SECTION = struct.Struct(">HHII")
TRAILER = struct.Struct(">IIqqHH4s")
TRAILER_MAGIC = b"KFE2"
FOOTER_MAX_BYTES = 64 << 20  # a longer one is a damaged trailer, not a reason to allocate

IDENTITY_SECTION, INDEX_SECTION, PRODUCERS_SECTION, EPOCHS_SECTION, COMPACTION_SECTION = 1, 2, 3, 4, 5
ABORTED_SECTION, OPEN_SECTION, COORDINATORS_SECTION, MARKERS_SECTION, EARLIEST_SECTION = 6, 7, 8, 9, 10
SECTION_VERSION = 1  # of each of these
EPOCHS_VERSION_WITH_TRANSACTIONS = 2  # of the section of leader epochs, in a segment of version 3
SOME_PRODUCERS_VERSION = 2  # of the producers' section, where it has not all of them
IDENTITY = struct.Struct(">16siqiiqiqqI")
PRODUCERS_FROM = struct.Struct(">q")
PRODUCER = struct.Struct(">qhqB")
PRODUCED_BATCH = struct.Struct(">iiqq")
EPOCH = struct.Struct(">iq")
COMPACTION = struct.Struct(">q")
NO_COMPACTION = bytes(COMPACTION.size)
MARKER_ROW = struct.Struct(">I")

INDEX_ROWS_MAX_COUNT = 1024


class IndexedBatch(Protocol):
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def max_timestamp_ms(self) -> int: ...
    @property
    def min_timestamp_ms(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


@attrs.frozen
class EpochStart:
    """The first offset that was written under a leader epoch (KIP-101)."""

    epoch: int
    start_offset: int


@attrs.frozen(kw_only=True)
class Identity:
    """Identifies a segment. `leader_epoch` is its writer's; `body_crc` is the CRC-32C over all batches."""

    topic_id: bytes
    partition: int
    base_offset: int
    generation: int
    leader_epoch: int
    created_ms: int
    batch_count: int
    body_bytes: int
    max_timestamp_ms: int
    body_crc: int


@attrs.frozen
class Index:
    """Rows in order of offset: a run of batches each. Positions count from the start of the `.kfs`.

    Unknown earliest timestamps are MIN_TIMESTAMP_UNKNOWN, by default all.
    """

    base_offsets: array[int]
    positions: array[int]
    max_timestamps_ms: array[int]
    min_timestamps_ms: array[int] = attrs.field()

    @min_timestamps_ms.default
    def _unknown(self) -> array[int]:
        return array("q", [MIN_TIMESTAMP_UNKNOWN]) * len(self.base_offsets)


@attrs.frozen(kw_only=True)
class Footer:
    """A decoded footer. `producers` is the state after the segment's last batch; `version` is that of the object.

    The footers of segments that hold `producers_from` or come after it have all producers; by default, this one alone.
    `first_dirty_offset`: the partition was compacted up to there when the segment was written, or 0. `aborted` are the
    transactions whose marker is in the segment, `open_transactions` those open at its end. `marker_rows` are rows of
    the index that may have markers; None if unknown.
    """

    identity: Identity
    last_offset: int
    record_count: int
    index: Index
    producers: Sequence[Producer]
    epochs: Sequence[EpochStart]
    producers_from: int = attrs.field()
    first_dirty_offset: int = 0
    aborted: tuple[AbortedTransaction, ...] = ()
    open_transactions: tuple[OpenTransaction, ...] = ()
    marker_rows: tuple[int, ...] | None = None
    version: int = attrs.field()

    @producers_from.default
    def _here(self) -> int:
        return self.identity.base_offset

    @version.default
    def _least(self) -> int:
        return VERSION_WITH_TRANSACTIONS if self.aborted or self.open_transactions else VERSION

    @property
    def has_all_producers(self) -> bool:
        return self.producers_from >= self.identity.base_offset

    @property
    def stable_end(self) -> int:
        """The begin of the oldest transaction that is open at the end, or the end."""
        return stable_end(self.open_transactions, self.last_offset + 1)

    @property
    def end_position(self) -> int:
        return HEADER.size + self.identity.body_bytes

    def row_of(self, offset: int) -> int:
        return max(0, bisect_right(self.index.base_offsets, offset) - 1)

    def row_start(self, row: int) -> int:
        """Return the position of a row, or of the end of the batches for the row after the last."""
        positions = self.index.positions
        return positions[row] if row < len(positions) else self.end_position

    def row_offset(self, row: int) -> int:
        """Return a row's base offset, or the end offset for the row after the last."""
        offsets = self.index.base_offsets
        return offsets[row] if row < len(offsets) else self.last_offset + 1

    def offset_at(self, position: int) -> int:
        """Return the base offset of the row at `position`, or the end offset."""
        return self.row_offset(bisect_left(self.index.positions, position))

    def rows_within(self, row: int, max_bytes: int) -> int:
        """Return the row behind those, at least one, that a read of about `max_bytes` from `row` on takes."""
        limit = self.index.positions[row] + max_bytes
        return max(row + 1, bisect_right(self.index.positions, limit) - (limit < self.end_position))


def build_footer(
    identity: Identity,
    spans: Sequence[IndexedBatch],
    *,
    producers: Sequence[Producer],
    producers_from: int | None = None,
    epochs: Sequence[EpochStart],
    aborted: Iterable[AbortedTransaction] = (),
    open_transactions: Iterable[OpenTransaction] = (),
    marker_offsets: Iterable[int] | None = None,
) -> Footer:
    """Make the footer of a segment with these batches. Without `producers_from` it has all producers."""
    index = _build_index(identity, spans)
    return Footer(
        identity=identity,
        last_offset=spans[-1].last_offset,
        record_count=sum(span.last_offset - span.base_offset + 1 for span in spans),
        index=index,
        producers=producers,
        producers_from=identity.base_offset if producers_from is None else producers_from,
        epochs=epochs,
        aborted=tuple(aborted),
        open_transactions=tuple(open_transactions),
        marker_rows=None if marker_offsets is None else rows_of(index, marker_offsets),
    )


def rows_of(index: Index, offsets: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({bisect_right(index.base_offsets, offset) - 1 for offset in offsets}))


def _build_index(identity: Identity, spans: Sequence[IndexedBatch]) -> Index:
    granularity = 0 if len(spans) <= INDEX_ROWS_MAX_COUNT else identity.body_bytes // INDEX_ROWS_MAX_COUNT
    base_offsets, positions, max_timestamps_ms, min_timestamps_ms = (array("q") for _ in range(4))
    position = HEADER.size
    next_offset = identity.base_offset
    row_start = -1 - granularity
    for span in spans:
        if position - row_start > granularity:
            base_offsets.append(next_offset)
            positions.append(position)
            max_timestamps_ms.append(span.max_timestamp_ms)
            min_timestamps_ms.append(span.min_timestamp_ms)
            row_start = position
        else:
            max_timestamps_ms[-1] = max(max_timestamps_ms[-1], span.max_timestamp_ms)
            min_timestamps_ms[-1] = min(min_timestamps_ms[-1], span.min_timestamp_ms)
        position += span.size_bytes
        next_offset = span.last_offset + 1
    return Index(base_offsets, positions, max_timestamps_ms, min_timestamps_ms)


def encode_header(footer: Footer) -> bytes:
    """Encode the first 32 bytes of the `.kfs`."""
    identity = footer.identity
    version = footer.version
    return HEADER.pack(HEADER_MAGIC, version, 0, identity.base_offset, identity.batch_count, identity.created_ms, 0)


def encode_footer(footer: Footer) -> bytes:
    """Encode footer and trailer: the end of the `.kfs`, and the whole `.index`."""
    identity = footer.identity
    producers = encode_producers(footer.producers)
    columns = (footer.index.base_offsets, footer.index.positions, footer.index.max_timestamps_ms)
    assert footer.version == (VERSION_WITH_TRANSACTIONS if footer.aborted or footer.open_transactions else VERSION)
    sections = [
        (IDENTITY_SECTION, SECTION_VERSION, IDENTITY.pack(*attrs.astuple(identity))),
        (INDEX_SECTION, SECTION_VERSION, b"".join(map(_big_endian, columns))),
        (PRODUCERS_SECTION, SECTION_VERSION, producers)
        if footer.has_all_producers
        else (PRODUCERS_SECTION, SOME_PRODUCERS_VERSION, PRODUCERS_FROM.pack(footer.producers_from) + producers),
        (EPOCHS_SECTION, _epochs_version(footer), encode_epochs(footer.epochs)),
    ]
    if footer.first_dirty_offset:
        sections.append((COMPACTION_SECTION, SECTION_VERSION, COMPACTION.pack(footer.first_dirty_offset)))
    transactions = (
        (ABORTED_SECTION, SECTION_VERSION, encode_aborted(footer.aborted)),
        (OPEN_SECTION, SECTION_VERSION, encode_open(footer.open_transactions)),
        (COORDINATORS_SECTION, SECTION_VERSION, encode_coordinators(footer.producers)),
    )
    sections += [section for section in transactions if section[-1]]
    if footer.marker_rows is not None:
        sections.append((MARKERS_SECTION, SECTION_VERSION, b"".join(map(MARKER_ROW.pack, footer.marker_rows))))
    earliest_ms = footer.index.min_timestamps_ms
    if earliest_ms.count(MIN_TIMESTAMP_UNKNOWN) < len(earliest_ms):
        sections.append((EARLIEST_SECTION, SECTION_VERSION, _big_endian(earliest_ms)))
    encoded = b"".join(
        SECTION.pack(kind, version, len(payload), crc32c(payload)) + payload for kind, version, payload in sections
    )
    assert len(encoded) <= FOOTER_MAX_BYTES, f"a footer of {len(encoded)} bytes can't be read again"
    trailer = TRAILER.pack(len(encoded), 0, footer.last_offset, footer.record_count, VERSION, 0, TRAILER_MAGIC)
    crc = _trailer_crc(encoded, trailer)
    return encoded + trailer[:4] + crc.to_bytes(4, "big") + trailer[8:]


def _epochs_version(footer: Footer) -> int:
    return SECTION_VERSION if footer.version == VERSION else EPOCHS_VERSION_WITH_TRANSACTIONS


def _trailer_crc(encoded: Buffer, trailer: Buffer) -> int:
    view = memoryview(trailer)
    return crc32c(view[8:], crc32c(view[:4], crc32c(encoded)))


def _big_endian(column: array[int]) -> bytes:
    if byteorder == "little":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def encode_producers(producers: Iterable[Producer]) -> bytes:
    return b"".join(map(_encode_producer, producers))


def encode_epochs(epochs: Iterable[EpochStart]) -> bytes:
    return b"".join(EPOCH.pack(start.epoch, start.start_offset) for start in epochs)


def _encode_producer(producer: Producer) -> bytes:
    fields: list[int] = []
    for batch in producer.batches:
        fields += (batch.base_sequence, batch.last_sequence, batch.base_offset, batch.last_offset)
    count = len(producer.batches)
    return _producer_of(count).pack(producer.producer_id, producer.epoch, producer.last_timestamp_ms, count, *fields)


@cache
def _producer_of(batch_count: int) -> struct.Struct:
    """Return the struct of a producer with its batches: one call takes half the time."""
    return struct.Struct(PRODUCER.format + PRODUCED_BATCH.format[1:] * batch_count)


def footer_bytes_needed(tail: Buffer, name: str) -> int:
    """Return the size of footer and trailer. Raises DamagedObject."""
    if len(tail) < TRAILER.size:
        raise DamagedObject(f"{name}: {len(tail)} bytes are too few for a trailer; it is cut off or not a segment")
    length, _, _, _, version, _, magic = TRAILER.unpack(memoryview(tail)[-TRAILER.size :])
    if magic != TRAILER_MAGIC or version < VERSION or length > FOOTER_MAX_BYTES:
        raise DamagedObject(f"{name}: no version {VERSION} trailer at the end; it is cut off or not a segment")
    return int(length) + TRAILER.size


def decode_footer(tail: Buffer, name: str) -> Footer:
    """Decode an `.index`, or the end of a `.kfs` of at least `footer_bytes_needed`.

    Raises DamagedObject; NewerVersion for an intact one.
    """
    needed = footer_bytes_needed(tail, name)
    if len(tail) < needed:
        raise DamagedObject(f"{name}: the footer has {needed} bytes and only {len(tail)} are there")
    view = memoryview(tail)[len(tail) - needed :]
    encoded, trailer = view[: -TRAILER.size], view[-TRAILER.size :]
    _, crc, last_offset, record_count, version, _, _ = TRAILER.unpack(trailer)
    if _trailer_crc(encoded, trailer) != crc:
        raise DamagedObject(f"{name}: the footer's CRC-32C is wrong")
    if version > VERSION:
        raise NewerVersion(f"{name}: the segment has version {version}; a newer KafScale has written it")
    try:
        sections = _split_sections(encoded, name)
        names = [field.name for field in attrs.fields(Identity)]
        values = IDENTITY.unpack(sections[IDENTITY_SECTION, SECTION_VERSION])
        identity = Identity(**dict(zip(names, values, strict=True)))
        producers, producers_from = _decode_producers_section(sections, identity)
        epochs = sections.get((EPOCHS_SECTION, EPOCHS_VERSION_WITH_TRANSACTIONS))
        marked = sections.get((MARKERS_SECTION, SECTION_VERSION))
        has_transactions = epochs is not None
        footer = Footer(
            identity=identity,
            last_offset=last_offset,
            record_count=record_count,
            index=_decode_index(
                sections[INDEX_SECTION, SECTION_VERSION], sections.get((EARLIEST_SECTION, SECTION_VERSION))
            ),
            producers=producers,
            producers_from=producers_from,
            epochs=decode_epochs(sections[EPOCHS_SECTION, SECTION_VERSION] if epochs is None else epochs),
            first_dirty_offset=COMPACTION.unpack(sections.get((COMPACTION_SECTION, SECTION_VERSION), NO_COMPACTION))[0],
            aborted=decode_aborted(sections.get((ABORTED_SECTION, SECTION_VERSION), b"")),
            open_transactions=decode_open(sections.get((OPEN_SECTION, SECTION_VERSION), b"")),
            marker_rows=None if marked is None else tuple(row for (row,) in MARKER_ROW.iter_unpack(marked)),
        )
    except (struct.error, KeyError, ValueError) as exc:
        raise DamagedObject(f"{name}: the footer can't be decoded: {exc!r}") from exc
    if has_transactions != (footer.version == VERSION_WITH_TRANSACTIONS):
        raise DamagedObject(f"{name}: has transactions, and says that it has none, or the other way round")
    return footer


_OTHER_VERSIONS = {
    (PRODUCERS_SECTION, SOME_PRODUCERS_VERSION),
    (EPOCHS_SECTION, EPOCHS_VERSION_WITH_TRANSACTIONS),
}
_Sections = dict[tuple[int, int], Buffer]  # by kind and version


def _split_sections(encoded: memoryview, name: str) -> _Sections:
    sections: _Sections = {}
    position = 0
    while position < len(encoded):
        kind, version, length, crc = SECTION.unpack_from(encoded, position)
        payload = encoded[position + SECTION.size : position + SECTION.size + length]
        if len(payload) != length or crc32c(payload) != crc:
            raise DamagedObject(f"{name}: section {kind} of the footer is damaged")
        is_known = version == SECTION_VERSION or (kind, version) in _OTHER_VERSIONS
        if kind <= COORDINATORS_SECTION and not is_known:
            raise NewerVersion(f"{name}: section {kind} has version {version}; a newer KafScale has written it")
        sections[kind, version] = payload
        position += SECTION.size + length
    return sections


def _decode_index(payload: Buffer, earliest: Buffer | None) -> Index:
    size = len(payload) // 3
    columns = [_decode_column(payload[start : start + size]) for start in (0, size, 2 * size)]
    if not columns[0] or len(payload) % 3 or (earliest is not None and len(earliest) != size):
        raise ValueError("the index is empty or has uneven columns")
    if earliest is not None:
        columns.append(_decode_column(earliest))
    return Index(*columns)


def _decode_column(payload: Buffer) -> array[int]:
    column = array("q")
    column.frombytes(payload)
    if byteorder == "little":
        column.byteswap()
    return column


def decode_epochs(payload: Buffer) -> Sequence[EpochStart]:
    return [EpochStart(*row) for row in EPOCH.iter_unpack(payload)]


def decode_producers(payload: Buffer) -> Sequence[Producer]:
    producers = []
    position = 0
    while position < len(payload):
        producer_id, epoch, last_timestamp_ms, count = PRODUCER.unpack_from(payload, position)
        position += PRODUCER.size
        end = position + count * PRODUCED_BATCH.size
        batches = [ProducedBatch(*row) for row in PRODUCED_BATCH.iter_unpack(payload[position:end])]
        producers.append(Producer(producer_id, epoch, batches, last_timestamp_ms))
        position = end
    return producers


def _decode_producers_section(sections: _Sections, identity: Identity) -> tuple[Sequence[Producer], int]:
    coordinators = decode_coordinators(sections.get((COORDINATORS_SECTION, SECTION_VERSION), b""))
    some = sections.get((PRODUCERS_SECTION, SOME_PRODUCERS_VERSION))
    if some is None:
        all_of_them = decode_producers(sections[PRODUCERS_SECTION, SECTION_VERSION])
        return with_coordinators(all_of_them, coordinators), identity.base_offset
    producers = decode_producers(memoryview(some)[PRODUCERS_FROM.size :])
    return with_coordinators(producers, coordinators), PRODUCERS_FROM.unpack_from(some)[0]


def body_crc(buffers: Iterable[Buffer]) -> int:
    crc = 0
    for buffer in buffers:
        crc = crc32c(buffer, crc)
    return crc


def check_index_order(footer: Footer, name: str) -> None:
    """Check that offsets and positions grow and stay inside the segment. Raises DamagedObject."""
    for column in (footer.index.base_offsets, footer.index.positions):
        if any(after <= before for before, after in pairwise(column)):
            raise DamagedObject(f"{name}: the index is not in order")
    if footer.index.positions[0] != HEADER.size or footer.index.positions[-1] >= footer.end_position:
        raise DamagedObject(f"{name}: the index points outside of the segment")
    if footer.index.base_offsets[0] != footer.identity.base_offset:
        raise DamagedObject(f"{name}: the index does not begin at the base offset")
    if max(footer.marker_rows or (0,)) >= len(footer.index.positions):
        raise DamagedObject(f"{name}: the footer tells of markers in a row that the index does not have")
    if footer.index.base_offsets[-1] > footer.last_offset:
        raise DamagedObject(f"{name}: the index goes on behind the last offset")
