"""The index of a WAL object: where the batches of each partition are, so that a reader gets only those it needs.

It is the first entry, of a kind that readers of before it pass over. The entries behind it are in order of partition:

    index = for each partition: topic id 16 | partition i32 | start u64 | length u64 | entry count u32

`start` is where the header of the partition's first entry begins in the object; the next partition's follow. A small
object has none: it is read whole. May not import trio.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import attrs

from kafscale.buffers import Buffer
from kafscale.errors import CorruptBatch, DamagedObject
from kafscale.formats.manifest import PartitionId
from kafscale.formats.metadata_changes import Transaction, decode_transaction
from kafscale.formats.wal_entries import ENTRY_HEADER_BYTES, INDEX, METADATA, RECORD_BATCH, WalEntry, decode_entry, scan
from kafscale.formats.wal_objects import HEADER_BYTES, ObjectHeader, decode_object
from kafscale.store.paths import NumberedKey
from kafscale.wire.batch_header import BatchHeader, parse_header
from kafscale.wire.control_records import EndMarker, parse_marker

INDEXED_LEAST_BYTES = 1 << 20  # of entries: all of less is read as soon as an index and a part are
HEAD_BYTES = 64 << 10  # what a reader gets first, with the index of 1,600 partitions
GAP_MAX_BYTES = 512 << 10  # between two partitions' batches that one read takes along: a GET more takes as long

_ROW = struct.Struct(">16siQQI")
_NO_TOPIC = bytes(16)


@attrs.frozen
class Span:
    """The entries of one partition: their bytes in the object, their count and the first one's number."""

    start: int
    end: int
    entry_count: int
    sequence: int


@attrs.frozen
class SpanRun:
    """Spans that are read together, with little in between."""

    spans: Sequence[Span]

    @property
    def start(self) -> int:
        return self.spans[0].start

    @property
    def size_bytes(self) -> int:
        return self.spans[-1].end - self.start


def with_index(entries: Sequence[WalEntry]) -> list[WalEntry]:
    """Sort the entries by partition and put their index before them."""
    in_order = sorted(entries, key=_partition_of)
    groups = [(partition_id, list(group)) for partition_id, group in groupby(in_order, _partition_of)]
    position = HEADER_BYTES + ENTRY_HEADER_BYTES + _ROW.size * len(groups)
    rows: list[bytes] = []
    for partition_id, group in groups:
        length = sum(ENTRY_HEADER_BYTES + len(entry.data) for entry in group)
        rows.append(_ROW.pack(*partition_id, position, length, len(group)))
        position += length
    return [WalEntry(_NO_TOPIC, -1, 0, 0, b"".join(rows), kind=INDEX), *in_order]


def _partition_of(entry: WalEntry) -> PartitionId:
    return entry.topic_id, entry.partition


def find_index(key: str, header: ObjectHeader, buffer: Buffer) -> Mapping[PartitionId, Span] | None:
    """Decode the index at the begin of an object; None if it has none, or it is cut off here.

    Raises DamagedObject, naming `key`, if it does not cover all entries.
    """
    entry = decode_entry(memoryview(buffer), HEADER_BYTES, salt=header.salt)
    if entry is None or entry.kind != INDEX or entry.sequence != header.sequence:
        return None
    spans: dict[PartitionId, Span] = {}
    sequence, position = header.sequence + 1, entry.end
    for topic_id, partition, start, length, entry_count in _ROW.iter_unpack(entry.data):
        if start != position:
            raise DamagedObject(f"{key}: the index goes on at {start}, and what it tells of ends at {position}")
        spans[topic_id, partition] = Span(start, start + length, entry_count, sequence)
        sequence, position = sequence + entry_count, start + length
    if (sequence, position) != (header.sequence + header.entry_count, HEADER_BYTES + header.body_bytes):
        raise DamagedObject(f"{key}: the index tells of entries up to {sequence} at {position}, which are not all")
    return spans


def runs_of(spans: Iterable[Span]) -> Sequence[SpanRun]:
    runs: list[list[Span]] = []
    for span in sorted(spans, key=lambda each: each.start):
        if runs and span.start - runs[-1][-1].end <= GAP_MAX_BYTES:
            runs[-1].append(span)
        else:
            runs.append([span])
    return [SpanRun(run) for run in runs]


def decode_spans(key: str, header: ObjectHeader, run: SpanRun, buffer: Buffer) -> Sequence[WalEntry]:
    """Decode the entries of a run, with positions in the object. Raises DamagedObject, naming `key`."""
    found: list[WalEntry] = []
    view = memoryview(buffer)
    for span in run.spans:
        end = span.start - run.start
        count = 0
        for entry in scan(view[: span.end - run.start], end, salt=header.salt):
            if entry.sequence != span.sequence + count:
                break
            count, end = count + 1, entry.end
            found.append(entry)
        if (count, end) != (span.entry_count, span.end - run.start):
            raise DamagedObject(f"{key}: entry {span.sequence + count} at {run.start + end} is damaged")
    for entry in found:
        entry.position += run.start
    return found


@attrs.frozen(kw_only=True)
class LoggedBatch:
    """A record batch in an object of the log, at `position`.

    `header` is kept for transactional and control batches only, `marker` for a transaction's end.
    """

    key: NumberedKey
    salt: int
    position: int
    length_bytes: int
    leader_epoch: int
    base_offset: int
    next_offset: int
    max_timestamp_ms: int
    header: BatchHeader | None = None
    marker: EndMarker | None = None


@attrs.frozen
class LoggedObject:
    """The content of a WAL object: batches by partition, in order, and changes of metadata."""

    header: ObjectHeader
    batches: Mapping[PartitionId, Sequence[LoggedBatch]]
    transactions: Sequence[Transaction]

    @classmethod
    def decode(cls, key: NumberedKey, data: memoryview) -> LoggedObject:
        """Decode an object. Raises DamagedObject."""
        header, entries = decode_object(key.key, data)
        batches: dict[PartitionId, list[LoggedBatch]] = defaultdict(list)
        transactions: list[Transaction] = []
        for entry in entries:
            if entry.kind == RECORD_BATCH:
                batches[entry.topic_id, entry.partition].append(_batch(key, header, entry))
            elif entry.kind == METADATA:
                transactions.append(decode_transaction(memoryview(entry.data)))
        return cls(header, dict(batches), transactions)


def _batch(key: NumberedKey, of: ObjectHeader, entry: WalEntry) -> LoggedBatch:
    data = memoryview(entry.data)
    try:
        header = parse_header(data)
        marker = parse_marker(data, header) if header.is_control else None
    except CorruptBatch as exc:
        raise DamagedObject(f"{key.key}: the batch at {entry.position} can't be read: {exc}") from exc
    return LoggedBatch(
        key=key,
        salt=of.salt,
        position=entry.position,
        length_bytes=len(data),
        leader_epoch=entry.leader_epoch,
        base_offset=entry.base_offset,
        next_offset=entry.base_offset + header.last_offset_delta + 1,
        max_timestamp_ms=header.max_timestamp_ms,
        header=header if header.is_transactional or header.is_control else None,
        marker=marker,
    )
