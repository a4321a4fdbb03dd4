"""Ending a transaction in one partition: the marker that its coordinator has decided on. No client's batch comes here.

A coordinator on this broker appends its decision, the markers and the end of the transaction without anything in
between, so that one round of the journal makes all of them durable.
"""

from __future__ import annotations

import attrs

from kafscale.errors import KafkaError
from kafscale.log.partition.partition import Partition, Placed
from kafscale.log.partition.tail import ALONE
from kafscale.log.wal.journal import Round
from kafscale.wire.batch_header import parse_header
from kafscale.wire.control_records import EndMarker, encode_marker


@attrs.frozen
class Marked:
    """A partition has a marker. `round` is when it becomes durable; None if it is."""

    round: Round | None


def append_marker_nowait(partition: Partition, marker: EndMarker, now_ms: int) -> Marked | None:
    """Append a marker, unless the partition has it already; None if the pool has no memory for it: nothing happened.

    Raises KafkaError INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, or why the partition is closed;
    StorageFailed.
    """
    if not is_wanted(partition, marker):
        return _marked_before(partition)
    data = memoryview(encode_marker(marker, now_ms))
    placed = partition.place_nowait(data)
    return None if placed is None else _append(partition, placed, now_ms)


async def append_marker(partition: Partition, marker: EndMarker, now_ms: int) -> Marked:
    """Append a marker, as soon as the pool has memory for it. Raises as `append_marker_nowait`."""
    marked = append_marker_nowait(partition, marker, now_ms)
    if marked is not None:
        return marked
    data = encode_marker(marker, now_ms)
    lease = await partition.pool.acquire(len(data))
    try:
        if not is_wanted(partition, marker):  # it may have come meanwhile
            lease.release()
            return _marked_before(partition)
        lease.view[:] = data
        return _append(partition, Placed(lease.view, lease, ALONE), now_ms)
    except KafkaError:
        lease.release()
        raise


def is_wanted(partition: Partition, marker: EndMarker) -> bool:
    """Tell whether a marker may be appended, and would change anything. Raises KafkaError as above."""
    if partition.closed:
        raise KafkaError(partition.closed_error)
    return partition.transactions.check_marker(marker, partition.producers.producers.get(marker.producer_id))


def _marked_before(partition: Partition) -> Marked:
    """Wait for all that was appended: which of it was the marker is not remembered."""
    is_durable = partition.high_watermark >= partition.next_offset
    return Marked(None if is_durable else partition.latest_round)


def _append(partition: Partition, placed: Placed, now_ms: int) -> Marked:
    try:
        partition.append(parse_header(placed.data), placed, now_ms)
    except BaseException:
        partition.give_back(placed)
        raise
    return Marked(partition.latest_round)
