"""Records whose offset deltas are not their indices, written anew with those that are.

Clients that fill in no offset deltas, and copiers of single records, send such batches. Kafka stores them as they are,
unless they are compressed, and its consumers then see several records of one offset. Here each gets its own. Like a
check of records this is done in steps, and whatever is wrong with the records otherwise is for that check to find.
"""

from __future__ import annotations

from typing import Final

import attrs

from kafscale.buffers import Buffer
from kafscale.errors import DecodeError, InvalidRecord
from kafscale.wire.primitives import read_uvarint, varint

STEP_COUNT: Final = 512
"""Records of a step: a microsecond or two each."""


@attrs.define(eq=False, repr=False)
class Renumbering:
    """Write `count` records, with nothing compressed in them, into `written`."""

    records: Buffer
    count: int
    written: bytearray = attrs.field(factory=bytearray, init=False)
    _index: int = attrs.field(default=0, init=False)
    _position: int = attrs.field(default=0, init=False)

    def advance(self, count: int = STEP_COUNT) -> bool:
        """Write `count` more records; return True at the end. Raises InvalidRecord for a wrong length."""
        try:
            for index in range(self._index, min(self._index + count, self.count)):
                self._position = self._write(index, self._position)
        except (IndexError, DecodeError) as error:
            raise InvalidRecord(f"record {index} is not what its lengths say: {error}") from error
        self._index = min(self._index + count, self.count)
        if self._index < self.count:
            return False
        self.written += self.records[self._position :]
        return True

    def _write(self, index: int, start: int) -> int:
        """Write the record at `start` with `index` for its offset delta and return where it ends."""
        length, body = read_uvarint(self.records, start)
        end = body + (length >> 1)
        delta = body + 1
        while self.records[delta] >= 128:  # behind the timestamp's
            delta += 1
        _, rest = read_uvarint(self.records, delta + 1)
        if length & 1 or not rest <= end <= len(self.records):
            raise DecodeError(f"a length of {(length >> 1) ^ -(length & 1)}")
        head = bytes(self.records[body : delta + 1]) + varint(index)
        self.written += varint(len(head) + end - rest)
        self.written += head
        self.written += self.records[rest:end]
        return end
