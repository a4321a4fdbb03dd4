"""One batch on its way into the log of its partition, by the same steps whichever way its request takes.

    led_partition    which partition a request means, or why it can't be written to here (`handling.partitions`)
    begin_batch      header, CRC, limits; the records as far as they can be looked at on the event loop; keys and times
    append_batch     the sequence number, memory unless it was found before, offsets, the journal

The short way does all three in one call, and whatever is refused or not finished there goes the general way from the
start. The general way may check what takes long, and wait for memory, between the last two.
"""

from __future__ import annotations

import time

import attrs

from kafscale.api.handling.services import Services
from kafscale.errors import InvalidRecord, KafkaError
from kafscale.log.partition.log_config import LogConfig
from kafscale.log.partition.partition import Partition, Placed
from kafscale.log.wal.journal import Round
from kafscale.wire import error_codes
from kafscale.wire.compression import ZSTD
from kafscale.wire.record_check import NO_TIMESTAMP_MS, RecordCheck
from kafscale.wire.records import (
    CODEC_MASK,
    TRANSACTIONAL,
    BatchHeader,
    set_log_append_time,
    set_max_timestamp,
    validate_header,
)

FIRST_VERSION_WITH_ZSTD = 7
ALLOWED_ATTRIBUTES = CODEC_MASK | TRANSACTIONAL  # of clients' batches
MAX_INT64 = (1 << 63) - 1


@attrs.define(eq=False, repr=False)
class Batch:
    """A batch whose header was found to be right.

    `check` is that of its records: None while they are compressed, and once it has ended. `left_units` is what it has
    left of what may be looked at on the event loop. `placed` is memory that lasts until the batch is in the bucket.
    After `append_batch`, `round` is when it becomes durable, None if it is already. What is known only later has no
    default, which would cost each batch as much as all the rest.
    """

    partition: Partition
    header: BatchHeader
    data: memoryview
    check: RecordCheck | None
    left_units: int
    is_checked: bool = False
    placed: Placed | None = None
    max_timestamp_ms: int = attrs.field(init=False)  # what the records say
    min_timestamp_ms: int = attrs.field(init=False)  # alike, NO_TIMESTAMP_MS among them
    base_offset: int = attrs.field(init=False)
    log_append_time_ms: int = attrs.field(init=False)  # -1 but for topics with LogAppendTime
    round: Round | None = attrs.field(init=False)

    def judge(self, check: RecordCheck) -> None:
        """Its records were found to be whole: may this partition have them, by keys and times? Raises KafkaError."""
        if check.null_keys_count and self.partition.config.compact:
            reason = f"Compacted topic cannot accept message without key in topic partition {self.partition}."
            raise InvalidRecord(
                f"{check.null_keys_count} of {check.count} records have no key, which a compacted topic needs",
                tuple((index, reason) for index in check.null_keys),
            )
        self.judge_times(check.max_timestamp_ms, check.min_timestamp_ms)
        self.min_timestamp_ms = check.first_timestamp_ms  # some records may have none

    def judge_times(self, latest_ms: int, earliest_ms: int | None) -> None:
        """Its records are whole, and have the keys that they need: may they have these times? Raises KafkaError."""
        config = self.partition.config
        if not config.log_append_time:
            now_ms = time.time_ns() // 1_000_000
            if latest_ms > now_ms + config.message_timestamp_after_max_ms or latest_ms > MAX_INT64:
                raise KafkaError(
                    error_codes.INVALID_TIMESTAMP,
                    f"timestamp {latest_ms} is too far ahead (message.timestamp.after.max.ms)",
                )
            if earliest_ms is not None and (
                earliest_ms < now_ms - config.message_timestamp_before_max_ms or earliest_ms < -MAX_INT64
            ):
                raise KafkaError(
                    error_codes.INVALID_TIMESTAMP,
                    f"timestamp {earliest_ms} is too old (message.timestamp.before.max.ms)",
                )
        self.max_timestamp_ms, self.check, self.is_checked = latest_ms, None, True
        self.min_timestamp_ms = NO_TIMESTAMP_MS if earliest_ms is None else earliest_ms

    def give_back(self) -> None:
        """It will not be appended: free its memory."""
        if self.placed is not None:
            self.partition.give_back(self.placed)
            self.placed = None


def begin_batch(
    services: Services,
    partition: Partition,
    records: memoryview | None,
    *,
    version: int,
    units: int,
    transactional: bool = False,
) -> Batch:
    """Check a batch as far as `units` allow: `is_checked` says whether that was all. Raises KafkaError.

    `transactional` says that the request has a transactional id, without which no batch of a transaction is taken.
    """
    if not records:
        raise InvalidRecord("the request has no record batch for this partition")
    header = _validated(partition.config, records, version)
    if header.attributes & TRANSACTIONAL:
        _check_transactional(header, transactional)
    checks = services.record_checks
    times = checks.shapes.times(header, records, needs_keys=partition.config.compact) if units > 0 else None
    if times is not None:
        batch = Batch(partition, header, records, None, units - 1)
        batch.judge_times(*times)
        return batch
    check, left_units = checks.begin(partition.config, header, records, units)
    batch = Batch(partition, header, records, check, left_units)
    if check is not None and left_units > 0:
        batch.judge(check)
    return batch


def append_batch(batch: Batch, now_ms: int, *, is_enrolled: bool = False, is_early: bool = False) -> bool:
    """Append a checked batch, or find that it repeats an earlier one: either way its offset is known then.

    False if it has no memory yet, and the pool has none: then nothing has happened. Raises KafkaError if it is refused.
    `is_enrolled` says that the coordinator has made this partition part of the producer's transaction, `is_early` that
    the batch was so when its request came (`ProducerStates.is_early`).
    """
    partition, header = batch.partition, batch.header
    try:
        if partition.closed:
            raise KafkaError(partition.closed_error)
        earlier = partition.producers.check(header, is_early=is_early) if header.producer_id >= 0 else None
        if earlier is None and (header.attributes & TRANSACTIONAL or partition.transactions.open):
            partition.transactions.check_data(header, is_enrolled=is_enrolled)
    except KafkaError:
        batch.give_back()
        raise
    batch.log_append_time_ms = -1
    if earlier is not None:
        batch.give_back()
        batch.base_offset = earlier.base_offset
        batch.round = partition.latest_round if earlier.last_offset >= partition.high_watermark else None
        return True
    placed = batch.placed
    if placed is None:
        placed = partition.place_nowait(batch.data)
        if placed is None:
            return False
    if header.max_timestamp_ms != batch.max_timestamp_ms or partition.config.log_append_time:
        header = _stamp(batch, placed, now_ms)
    appended = partition.append(header, placed, now_ms, min_timestamp_ms=batch.min_timestamp_ms)
    batch.base_offset = appended.base_offset
    batch.round = partition.latest_round
    return True


def _stamp(batch: Batch, placed: Placed, now_ms: int) -> BatchHeader:
    """Write the time that readers and retention go by: that of the append, or the latest of the records."""
    if batch.partition.config.log_append_time:
        set_log_append_time(placed.data, now_ms)
        batch.log_append_time_ms = batch.min_timestamp_ms = now_ms
        return attrs.evolve(batch.header, max_timestamp_ms=now_ms)
    set_max_timestamp(placed.data, batch.max_timestamp_ms)
    return attrs.evolve(batch.header, max_timestamp_ms=batch.max_timestamp_ms)


def _validated(config: LogConfig, records: memoryview, version: int) -> BatchHeader:
    """Check a batch, but for its records. Raises KafkaError."""
    if len(records) > config.max_message_bytes:
        raise KafkaError(
            error_codes.MESSAGE_TOO_LARGE,
            f"a batch of {len(records)} bytes; max.message.bytes is {config.max_message_bytes}",
        )
    header = validate_header(records)
    if header.attributes & ~ALLOWED_ATTRIBUTES:
        _refuse_attributes(header)
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise InvalidRecord(f"producer {header.producer_id} sent no epoch or no sequence number")
    if header.attributes & CODEC_MASK == ZSTD and version < FIRST_VERSION_WITH_ZSTD:
        raise KafkaError(error_codes.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7")
    return header


def _check_transactional(header: BatchHeader, transactional: bool) -> None:
    if not transactional:
        reason = "a batch of a transaction in a request without a transactional id"
        raise KafkaError(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, reason)
    if header.producer_id < 0:
        raise InvalidRecord("a batch of a transaction without a producer id")


def _refuse_attributes(header: BatchHeader) -> None:
    if header.is_control:
        raise InvalidRecord("clients may not write control batches")
    if header.is_log_append_time:
        raise KafkaError(error_codes.INVALID_TIMESTAMP, "clients may not write batches with LogAppendTime")
    if header.delete_horizon_ms is not None:  # compaction would drop its tombstones by a time of the client's
        raise InvalidRecord("clients may not write batches with a delete horizon")
    raise InvalidRecord(f"a record batch with attributes that mean nothing: {header.attributes & 0xFFFF:#x}")
