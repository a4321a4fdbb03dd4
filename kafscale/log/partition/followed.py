"""Add batches of a leader's stream to the tail of a partition that this broker only follows.

They are never flushed here, and their producers are not remembered; transactions are, as they bound committed reads.
"""

from __future__ import annotations

from kafscale.formats.segment import EpochStart
from kafscale.formats.wal_index import LoggedBatch
from kafscale.formats.wal_objects import WalObject
from kafscale.log.partition.partition import Partition
from kafscale.log.partition.tail import ALONE, Memory, TailBatch
from kafscale.log.wal.streams import FollowedObject
from kafscale.wire.batch_header import MIN_TIMESTAMP_UNKNOWN


def follow_object(partition: Partition, followed: FollowedObject) -> bool:
    """Add an object's batches of this partition; False if a batch before them is missing."""
    return all(
        _follow(partition, followed_batch, followed.written, followed.memory)
        for followed_batch in followed.batches.get(partition.partition_id, ())
    )


def _follow(partition: Partition, logged: LoggedBatch, file: WalObject, memory: Memory | None) -> bool:
    if logged.leader_epoch != partition.leader_epoch or logged.base_offset < partition.next_offset:
        return True
    missing_before = max(partition.log_start_offset, partition.lost_before)
    if not partition.tail.batches and partition.next_offset < logged.base_offset <= missing_before:
        partition.skip_to(logged.base_offset)
    if logged.base_offset != partition.next_offset:
        return False
    if logged.marker is not None:
        partition.transactions.take_marker(logged.marker, logged.base_offset)
    elif logged.header is not None and not logged.header.is_control:
        partition.transactions.take_data(logged.header, logged.base_offset, -1)
    if not partition.epochs or partition.epochs[-1].epoch != logged.leader_epoch:
        partition.epochs.append(EpochStart(logged.leader_epoch, logged.base_offset))
    end = logged.position + logged.length_bytes
    batch = TailBatch(
        topic_id=partition.topic_id,
        partition=partition.index,
        leader_epoch=logged.leader_epoch,
        base_offset=logged.base_offset,
        data=b"" if memory is None else memory.view[logged.position : end],
        owner=partition,
        last_offset=logged.next_offset - 1,
        max_timestamp_ms=logged.max_timestamp_ms,
        min_timestamp_ms=MIN_TIMESTAMP_UNKNOWN,
        size_bytes=logged.length_bytes,
        lease=memory,
        start=ALONE,
        is_transactional=logged.header is not None and logged.header.is_transactional,
    )
    batch.file, batch.position = file, logged.position
    partition.next_offset = partition.high_watermark = logged.next_offset
    partition.transactions.became_durable(partition.high_watermark)
    partition.tail.append(batch)
    return True
