"""Apply a batch to the state of its producer and transaction: for appends, replay and repair."""

from __future__ import annotations

from kafscale.log.partition.producers import ProducerStates
from kafscale.log.partition.transactions import Transactions
from kafscale.wire.batch_header import BatchHeader
from kafscale.wire.control_records import parse_marker


def take_transactional(
    producers: ProducerStates,
    transactions: Transactions,
    header: BatchHeader,
    data: memoryview,
    *,
    base_offset: int,
    now_ms: int,
    durable_before: int,
) -> None:
    """A batch of a transaction, or the marker that ends one, got this offset. Raises CorruptBatch (of a marker)."""
    if header.is_control:
        marker = parse_marker(data, header)
        if marker is not None:
            ended = transactions.take_marker(marker, base_offset)
            goes_on = ended is not None and ended.epoch == marker.producer_epoch
            producers.record_marker(marker, base_offset, now_ms, goes_on=goes_on, durable_before=durable_before)
    else:
        producers.record(header, base_offset, now_ms, durable_before=durable_before)
        coordinator_epoch = producers.producers[header.producer_id].coordinator_epoch
        transactions.take_data(header, base_offset, coordinator_epoch)
