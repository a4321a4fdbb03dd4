"""Check the batches of a segment against its footer, piece by piece. Sans-IO.

Every checksum is computed, and redundant values must agree. Faults are collected, except for consequences of others.
Malformed records are accepted, since older versions did not parse records.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from crc32c import crc32c

from kafscale.buffers import Buffer
from kafscale.errors import CorruptBatch, KafkaError
from kafscale.formats.body import BatchSplitter, LocatedBatch
from kafscale.formats.manifest import MAX_TIMESTAMP_UNKNOWN
from kafscale.formats.segment import HEADER, Footer
from kafscale.formats.segment_v1 import VERSION as VERSION_1
from kafscale.wire.batch_header import BatchHeader, compute_crc, parse_header
from kafscale.wire.records import validate_header


@attrs.frozen
class Damage:
    """A fault and its position in the object or file, or None."""

    position: int | None
    message: str

    def __str__(self) -> str:
        return self.message


def validate_compacted(batch: memoryview) -> BatchHeader:
    """Validate a batch that may have lost records by compaction. Raises KafkaError."""
    header = parse_header(batch)
    if compute_crc(batch) != header.crc:
        raise CorruptBatch(f"the CRC of the record batch is {compute_crc(batch):#x}, its header says {header.crc:#x}")
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise CorruptBatch(f"{header.record_count} records with a last offset delta of {header.last_offset_delta}")
    return header


@attrs.define(eq=False, kw_only=True, repr=False)
class BodyCheck:
    """Takes the bytes from the first batch to `end` and collects `damage`.

    Without a `footer` only the first `stop_after_count` batches are checked. Offsets have no gap unless the segment is
    `merged`, and may be compacted. `check_batch` raises KafkaError; `on_batch` gets every batch, whose bytes are valid
    during the call.
    """

    footer: Footer | None
    base_offset: int
    end: int
    merged: bool = False
    stop_after_count: int | None = None
    check_batch: Callable[[memoryview], BatchHeader] | None = None
    on_batch: Callable[[BatchHeader, LocatedBatch], None] | None = None
    damage: list[Damage] = attrs.field(factory=list, init=False)
    batch_count: int = attrs.field(default=0, init=False)
    record_count: int = attrs.field(default=0, init=False)
    last_offset: int = attrs.field(default=-1, init=False)
    max_timestamp_ms: int = attrs.field(default=-1, init=False)
    body_crc: int = attrs.field(default=0, init=False)
    _ended: bool = attrs.field(default=False, init=False)
    _splitter: BatchSplitter = attrs.field(init=False)
    _next_offset: int | None = attrs.field(init=False)
    _row: int = attrs.field(default=0, init=False)
    _row_latest_ms: int = attrs.field(default=-1, init=False)

    def __attrs_post_init__(self) -> None:
        self._splitter = BatchSplitter(HEADER.size, self.end)
        self._next_offset = self.base_offset

    @property
    def position(self) -> int:
        """The end of the last whole batch."""
        return self._splitter.position

    def feed(self, piece: Buffer) -> None:
        self.body_crc = crc32c(piece, self.body_crc)
        if self._ended:
            return
        try:
            for batch in self._splitter.feed(piece):
                self._take(batch)
                if self.batch_count == self.stop_after_count:
                    self._ended = True
                    return
        except KafkaError as exc:
            self._break(exc)

    def finish(self) -> None:
        if not self._ended:
            try:
                self._splitter.finish()
            except KafkaError as exc:
                self._break(exc)
        if not self.damage and self.footer is not None:
            self._compare(self.footer)

    def _break(self, exc: KafkaError) -> None:
        self._ended = True
        self.damage.append(Damage(self.position, f"the batch at byte {self.position}: {exc}"))

    def _take(self, batch: LocatedBatch) -> None:
        check = self.check_batch or (validate_compacted if self.merged else validate_header)
        self.batch_count += 1
        try:
            header = check(batch.data)
        except KafkaError as exc:
            self.damage.append(Damage(batch.position, f"the batch at byte {batch.position}: {exc}"))
            self._next_offset = None  # what it says of its offsets is worth nothing
            self._pass_rows(batch.position)
            return
        self._check_offset(header, batch.position)
        self._check_row(header, batch.position)
        self._next_offset = header.next_offset
        self.last_offset = header.last_offset
        self.record_count += header.record_count
        self.max_timestamp_ms = max(self.max_timestamp_ms, header.max_timestamp_ms)
        if self.on_batch is not None:
            self.on_batch(header, batch)

    def _check_offset(self, header: BatchHeader, position: int) -> None:
        expected = self._next_offset
        if expected is None or header.base_offset == expected:
            return
        if header.base_offset < expected:
            what = f"the batch at byte {position} goes back to offset {header.base_offset}, {expected} follows"
        elif not self.merged:
            what = f"the batch at byte {position} leaves out offsets {expected} to {header.base_offset - 1}"
        else:
            return
        self.damage.append(Damage(position, what))

    def _check_row(self, header: BatchHeader, position: int) -> None:
        if self.footer is None:
            return
        index = self.footer.index
        if self._row < len(index.positions) and index.positions[self._row] <= position:
            self._end_row(index.max_timestamps_ms[self._row - 1] if self._row else None)
            told, base_offset = index.positions[self._row], index.base_offsets[self._row]
            if told != position or not self._begins_at(header, base_offset):
                self.damage.append(
                    Damage(told, f"the index says that offset {base_offset} begins at byte {told}; no batch does")
                )
            self._row += 1
        self._row_latest_ms = max(self._row_latest_ms, header.max_timestamp_ms)

    def _begins_at(self, header: BatchHeader, row_offset: int) -> bool:
        """Tell whether a row begins with this batch: a hole before the batch belongs to its row."""
        if not self.merged or self._next_offset is None:
            return row_offset == header.base_offset
        return row_offset in (header.base_offset, self._next_offset)

    def _pass_rows(self, position: int) -> None:
        while self.footer is not None and self._row < len(self.footer.index.positions):
            if self.footer.index.positions[self._row] > position:
                return
            self._row += 1

    def _end_row(self, told_ms: int | None) -> None:
        if not self.damage and told_ms not in (None, MAX_TIMESTAMP_UNKNOWN, self._row_latest_ms):
            self._expect(f"the greatest timestamp of index row {self._row - 1}", self._row_latest_ms, told_ms)
        self._row_latest_ms = -1

    def _compare(self, footer: Footer) -> None:
        index = footer.index
        if self._row < len(index.positions):
            self.damage.append(
                Damage(
                    index.positions[self._row], f"the index points at byte {index.positions[self._row]}; no batch does"
                )
            )
        else:
            self._end_row(index.max_timestamps_ms[-1])
        identity = footer.identity
        self._expect("the last offset", self.last_offset, footer.last_offset)
        self._expect("the number of records", self.record_count, footer.record_count)
        if footer.version != VERSION_1:
            self._expect("the number of batches", self.batch_count, identity.batch_count)
        if identity.max_timestamp_ms != MAX_TIMESTAMP_UNKNOWN:
            self._expect("the greatest timestamp", self.max_timestamp_ms, identity.max_timestamp_ms)
        self._expect("the batches' CRC-32C", f"{self.body_crc:#010x}", f"{identity.body_crc:#010x}")

    def _expect(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self.damage.append(Damage(None, f"{what} is {found}, not {expected}"))
