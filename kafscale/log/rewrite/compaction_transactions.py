"""What compaction must know of transactions: which records were aborted, and when a marker has served. Sans-IO.

The rules are those of Kafka's CleanedTransactionMetadata. Records of an aborted transaction go at once. A marker (a
control batch) stays as long as a batch of its transaction does: readers need it to tell what the batch is worth.

Kafka reads which transactions were aborted from an index; here `Outcomes` gathers it from the markers of the stretch
that is cleaned for the first time. That stretch must not end inside of a transaction whose marker is still to come.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs

from kafscale.log.rewrite.compaction_records import locate_records
from kafscale.wire.records import BatchHeader

ABORT = 0  # the type of a marker, the second field of a control record's key (KIP-98)
_marker_key = struct.Struct(">hh")


@attrs.frozen
class AbortedTransaction:
    """A producer's batches from `first_offset` to that of the marker were aborted."""

    producer_id: int
    first_offset: int
    marker_offset: int

    def holds(self, header: BatchHeader) -> bool:
        """Tell whether a batch is part of the transaction."""
        is_between = self.first_offset <= header.base_offset < self.marker_offset
        return is_between and header.producer_id == self.producer_id


@attrs.define(eq=False, repr=False)
class Outcomes:
    """How transactions ended, gathered from batches in order of offset."""

    aborted: list[AbortedTransaction] = attrs.field(factory=list, init=False)
    _open: dict[int, int] = attrs.field(factory=dict, init=False)  # producer id -> first offset

    def read(self, batch: memoryview, header: BatchHeader) -> None:
        """Read the next batch. Raises CorruptBatch."""
        if not header.is_control:
            if header.is_transactional:
                self._open.setdefault(header.producer_id, header.base_offset)
        elif (first_offset := self._open.pop(header.producer_id, None)) is not None and _is_abort(batch, header):
            self.aborted.append(AbortedTransaction(header.producer_id, first_offset, header.base_offset))

    @property
    def first_open_offset(self) -> int | None:
        """Return where the oldest transaction begins that has no marker yet; None if there is none."""
        return min(self._open.values(), default=None)


@attrs.define(eq=False, repr=False)
class TransactionFilter:
    """Says of each batch, in order of offset, whether its transaction needs it no more."""

    aborted: Sequence[AbortedTransaction]
    _observed: set[int] = attrs.field(factory=set, init=False)  # producers of whose transaction a batch was seen

    def is_done_with(self, header: BatchHeader) -> bool:
        """Tell whether a batch was aborted, or is a marker without a batch left to tell of."""
        if header.is_control:
            if header.producer_id in self._observed:
                self._observed.remove(header.producer_id)
                return False
            return True
        if not header.is_transactional:
            return False
        self._observed.add(header.producer_id)
        return any(each.holds(header) for each in self.aborted)


def _is_abort(batch: memoryview, header: BatchHeader) -> bool:
    for key in locate_records(batch, header).keys:
        if key is not None and len(key) >= _marker_key.size:
            return bool(_marker_key.unpack_from(key)[1] == ABORT)
    return False
