"""Isolation levels, and what `read_committed` leaves out of a Fetch's answer (KIP-98).

The broker ends such an answer at the last stable offset, and says which producers' transactions in it were aborted, and
where they begin. Where one ends its marker says, which is a batch of the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import attrs

from kafscale.buffers import Buffer
from kafscale.wire.control_records import parse_marker
from kafscale.wire.records import BatchHeader


class IsolationLevel(IntEnum):
    """What a reader wants of transactions; the value is that of the protocol."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@attrs.frozen
class AbortedFrom:
    """A transaction of this producer that was aborted begins at this offset."""

    producer_id: int
    first_offset: int


@attrs.define(eq=False, repr=False)
class AbortedBatches:
    """Tells which batches of one answer were aborted. It is asked for each of them, in order."""

    _pending: list[AbortedFrom]  # the first one is last
    _producer_ids: set[int] = attrs.field(factory=set, init=False)  # of those that have no marker so far

    @classmethod
    def of(cls, aborted: Iterable[AbortedFrom]) -> AbortedBatches:
        """Make it of these, which may come in any order."""
        return cls(sorted(aborted, key=lambda each: -each.first_offset))

    def have(self, header: BatchHeader, batch: Buffer) -> bool:
        """Tell whether the next batch is one of them. A marker is not. Raises CorruptBatch (of a marker)."""
        while self._pending and self._pending[-1].first_offset <= header.last_offset:
            self._producer_ids.add(self._pending.pop().producer_id)
        if header.producer_id not in self._producer_ids:
            return False
        if header.is_control:
            marker = parse_marker(memoryview(batch), header)
            if marker is not None and not marker.is_commit:
                self._producer_ids.discard(header.producer_id)
            return False
        return header.is_transactional
