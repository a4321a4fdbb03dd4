"""Whether the earliest times that a segment's footer tells of the rows of its index are those of their records.

A row's is the least timestamp of all its records. Headers of batches tell it where they can
(`BatchHeader.min_timestamp_ms`); of other batches the records are looked at, unpacked if need be. That is so of rows
of which it is told: compaction, repairs and versions of before leave it out.

Sans-IO; what is wrong comes as sentences about the segment.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from kafscale.errors import KafkaError
from kafscale.formats.segment import HEADER, Index
from kafscale.wire import compression, error_codes
from kafscale.wire.batch_header import MIN_TIMESTAMP_UNKNOWN
from kafscale.wire.records import HEADER_BYTES, BatchHeader, check_of

UNPACKED_MAX_BYTES = 64 << 20  # of a batch: of a row with one that unpacks to more, nothing is said


@attrs.define(eq=False, repr=False)
class EarliestCheck:
    """Takes all batches of a segment in order, and holds them against its index."""

    index: Index
    _position: int = attrs.field(default=HEADER.size, init=False)  # of the next batch
    _row: int = attrs.field(default=-1, init=False)
    _found_ms: dict[int, int | None] = attrs.field(factory=dict, init=False)  # by row; None where one can't be told
    _damage: list[str] = attrs.field(factory=list, init=False)

    def take(self, header: BatchHeader, batch: memoryview) -> None:
        """The next batch."""
        positions = self.index.positions
        while self._row + 1 < len(positions) and positions[self._row + 1] <= self._position:
            self._row += 1
        self._position += len(batch)
        row = self._row
        if row < 0 or self.index.min_timestamps_ms[row] == MIN_TIMESTAMP_UNKNOWN or self._found_ms.get(row, 0) is None:
            return
        try:
            earliest_ms = _earliest_ms(header, batch)
        except KafkaError as exc:
            what = f"the earliest timestamp of index row {row} is told, and what it is of can't be read: {exc}"
            self._damage.append(what)
            earliest_ms = None
        before_ms = self._found_ms.get(row)
        self._found_ms[row] = earliest_ms if earliest_ms is None or before_ms is None else min(before_ms, earliest_ms)

    def finish(self) -> Iterator[str]:
        """Yield what is wrong."""
        yield from self._damage
        for row, found_ms in self._found_ms.items():
            told_ms = self.index.min_timestamps_ms[row]
            if found_ms not in (None, told_ms):
                yield f"the earliest timestamp of index row {row} is {found_ms}, not {told_ms}"


def _earliest_ms(header: BatchHeader, batch: memoryview) -> int | None:
    """Return the least timestamp of a batch; None of one that is too large to unpack. Raises KafkaError."""
    if header.min_timestamp_ms != MIN_TIMESTAMP_UNKNOWN:
        return header.min_timestamp_ms
    records = batch[HEADER_BYTES:]
    try:
        unpacked = compression.decompress(header.codec, records, UNPACKED_MAX_BYTES) if header.codec else records
    except KafkaError as exc:
        if exc.code == error_codes.MESSAGE_TOO_LARGE:
            return None
        raise
    check = check_of(unpacked, header)
    check.finish()
    return check.first_timestamp_ms
