"""The fate of a marker by the answer of another broker; Kafka's `TransactionMarkerRequestCompletionHandler`."""

from __future__ import annotations

import enum

from kafscale.wire.error_codes import (
    INVALID_PRODUCER_EPOCH,
    NONE,
    TRANSACTION_COORDINATOR_FENCED,
    UNSUPPORTED_FOR_MESSAGE_FORMAT,
    UNSUPPORTED_VERSION,
)


class MarkerFate(enum.Enum):
    """The fate of a marker that was sent."""

    WRITTEN = enum.auto()  # or not needed there: tell the coordinator by `MarkersWritten`
    RETRY = enum.auto()  # to the leader of the partition by then
    FENCED = enum.auto()  # another coordinator has written there: resign


def marker_fate(error_code: int) -> MarkerFate:
    """Return what the error of one partition in a WriteTxnMarkers response means.

    INVALID_PRODUCER_EPOCH: the partition knows a later epoch of the producer, as after an administrator's abort, so
    that nothing of this transaction is open there; Kafka leaves such a transaction in PREPARE until the coordinator is
    loaded anew. For the partition of a deleted topic the sender itself counts the marker as written.
    """
    if error_code in (NONE, INVALID_PRODUCER_EPOCH, UNSUPPORTED_FOR_MESSAGE_FORMAT, UNSUPPORTED_VERSION):
        return MarkerFate.WRITTEN
    return MarkerFate.FENCED if error_code == TRANSACTION_COORDINATOR_FENCED else MarkerFate.RETRY
