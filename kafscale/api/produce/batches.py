"""Steps of a produced batch into the log of its partition, for both ways of a request.

    led_partition    find the partition, or why it can't be written to here (`handling.partitions`)
    begin_batch      header, CRC, limits; the records as far as the event loop has time for; keys and times
    append_batch     the sequence number, memory unless it was found before, offsets, the journal

The short way makes all three in one call; a batch that it can't finish goes the general way from the start. The general
way may finish long checks, and wait for memory, between the last two.

A batch of a transaction that is open in its partition needs no question: nothing else opens one. For the first batch
Produce 12 enrols the partition at the coordinator, and earlier versions ask whether AddPartitionsToTxn has (KIP-890).
Enrolment and batch follow each other in the write-ahead log. Under `segment`, and with another broker as coordinator,
the batch waits for the enrolment.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs
import trio

from kafscale.api.handling.services import Services
from kafscale.cluster.transactions.enrolling import ProducerEnrolment
from kafscale.cluster.transactions.ledger import ProducerIdentity
from kafscale.cluster.transactions.versions import PRODUCE_BUMP_VERSION, produce_code, transaction_version
from kafscale.errors import CorruptBatch, InvalidRecord, KafkaError, StorageFailed
from kafscale.log.partition.log_config import LogConfig
from kafscale.log.partition.partition import Partition, Placed
from kafscale.log.wal.journal import Round
from kafscale.wire import error_codes
from kafscale.wire.batch_header import (
    CODEC_MASK,
    TRANSACTIONAL,
    BatchHeader,
    set_attributes,
    set_log_append_time,
    set_max_timestamp,
)
from kafscale.wire.compression import ZSTD
from kafscale.wire.messages.records import BatchIndexAndErrorMessage, PartitionProduceResponse, ProduceResponse
from kafscale.wire.record_check import NO_TIMESTAMP_MS, RecordCheck
from kafscale.wire.records import first_batch, validate_header


class Pending(Protocol):
    """One or more Produces that are in the log or refused, in the queue of replies."""

    @property
    def ready(self) -> bool:
        """Tell whether `wait` would return at once."""

    async def wait(self) -> None:
        """Wait until the replies may be sent."""

    @property
    def responses(self) -> Sequence[ProduceResponse]:
        """The responses that may contain errors, which are counted."""

    @property
    def unencoded(self) -> ProduceResponse | None:
        """The response to encode and send, if there is one."""

    @property
    def replies(self) -> Sequence[bytes]:
        """Encoded replies to send."""


def refuse(response: PartitionProduceResponse, exc: KafkaError) -> None:
    response.error_code = exc.code
    response.error_message = exc.message
    response.base_offset = -1
    if isinstance(exc, InvalidRecord):
        response.record_errors = [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=reason)
            for index, reason in exc.record_errors
        ]


async def refusal_of(round: Round) -> KafkaError | None:
    """Wait for a round; return the error of its batches, or None if it is durable.

    Both possible errors are retriable. After REQUEST_TIMED_OUT the round may still become durable: a producer without
    idempotence may then repeat its records.
    """
    if round.done:
        return None
    try:
        await round.wait()
    except StorageFailed as exc:
        return KafkaError(error_codes.KAFKA_STORAGE_ERROR, str(exc))
    except trio.TooSlowError as exc:
        return KafkaError(error_codes.REQUEST_TIMED_OUT, str(exc))
    return None


FIRST_VERSION_WITH_ZSTD = 7
STORED_ATTRIBUTES = CODEC_MASK | TRANSACTIONAL
# Control batches are refused. Copiers also send LogAppendTime, delete horizons and unused bits, which Kafka accepts. It
# keeps the horizon, by which compaction would drop tombstones at a time chosen by the client.
OTHER_ATTRIBUTES = ~STORED_ATTRIBUTES
MAX_INT64 = (1 << 63) - 1
NO_PRODUCER_EPOCH = -1


@attrs.define(eq=False, repr=False)
class Batch:
    """A batch with a valid header.

    `check` is that of its records: None while they are compressed, and after its end. `left_units` are the units left
    to the request. `placed` is memory until the batch is in the bucket. After `append_batch`, `round` is the round to
    wait for, None if the batch is durable. Attributes that are set later have no default: setting them would take as
    long as all the others.
    """

    partition: Partition
    header: BatchHeader
    data: memoryview
    check: RecordCheck | None
    left_units: int
    is_checked: bool = False
    placed: Placed | None = None
    max_timestamp_ms: int = attrs.field(init=False)  # of the records
    min_timestamp_ms: int = attrs.field(init=False)  # of the records, of which some may have NO_TIMESTAMP_MS
    base_offset: int = attrs.field(init=False)
    log_append_time_ms: int = attrs.field(init=False)  # -1 without LogAppendTime
    round: Round | None = attrs.field(init=False)

    def judge(self, check: RecordCheck) -> None:
        """Check the keys and times of whole records. Raises KafkaError."""
        if check.null_keys_count and self.partition.config.compact:
            reason = f"Compacted topic cannot accept message without key in topic partition {self.partition}."
            raise InvalidRecord(
                f"{check.null_keys_count} of {check.count} records have no key, which a compacted topic needs",
                tuple((index, reason) for index in check.null_keys),
            )
        self.judge_times(check.max_timestamp_ms, check.min_timestamp_ms)
        self.min_timestamp_ms = check.first_timestamp_ms

    def judge_times(self, latest_ms: int, earliest_ms: int | None) -> None:
        """Check the times of whole records with the necessary keys. Raises KafkaError."""
        _check_times(self.partition.config, latest_ms, earliest_ms)
        self.max_timestamp_ms, self.check, self.is_checked = latest_ms, None, True
        self.min_timestamp_ms = NO_TIMESTAMP_MS if earliest_ms is None else earliest_ms

    def give_back(self) -> None:
        """Free the memory of a batch that will not be appended."""
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
    """Check a batch as far as `units` allow; `is_checked` tells whether the check is complete. Raises KafkaError.

    `transactional` tells that the request has a transactional id, which batches of transactions need.
    """
    if not records:
        raise InvalidRecord("the request has no record batch for this partition")
    header, records = _validated(partition.config, records, version)
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
    """Append a checked batch, or find that it repeats an earlier one, and set its offset and round.

    Returns False, and does nothing, if the batch has no memory and the pool is empty. Raises KafkaError to refuse it.
    `is_enrolled` tells that the coordinator has enrolled the partition, `is_early` is `ProducerStates.is_early` at the
    arrival of the batch.
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
    if (
        header.max_timestamp_ms != batch.max_timestamp_ms
        or partition.config.log_append_time
        or header.attributes & OTHER_ATTRIBUTES
    ):
        header = _stamp(batch, placed, now_ms)
    appended = partition.append(header, placed, now_ms, min_timestamp_ms=batch.min_timestamp_ms)
    batch.base_offset = appended.base_offset
    batch.round = partition.latest_round
    return True


def _stamp(batch: Batch, placed: Placed, now_ms: int) -> BatchHeader:
    """Write the time of the append, or the latest one of the records, into a batch. Clears attributes not stored."""
    attributes = batch.header.attributes & STORED_ATTRIBUTES
    if attributes != batch.header.attributes:
        set_attributes(placed.data, attributes)
    if batch.partition.config.log_append_time:
        set_log_append_time(placed.data, now_ms)
        batch.log_append_time_ms = batch.min_timestamp_ms = now_ms
        return attrs.evolve(batch.header, attributes=attributes, max_timestamp_ms=now_ms)
    set_max_timestamp(placed.data, batch.max_timestamp_ms)
    return attrs.evolve(batch.header, attributes=attributes, max_timestamp_ms=batch.max_timestamp_ms)


def _validated(config: LogConfig, records: memoryview, version: int) -> tuple[BatchHeader, memoryview]:
    """Check a batch except its records; return it without bytes behind it. Raises KafkaError."""
    if len(records) > config.max_message_bytes:
        records = _not_too_large(config, records)
    try:
        header = validate_header(records)
    except (CorruptBatch, InvalidRecord):
        records = first_batch(records)
        header = validate_header(records)
    if header.base_offset:
        raise InvalidRecord(f"the base offset of the batch is {header.base_offset}, which a client leaves at 0")
    if header.attributes & OTHER_ATTRIBUTES:
        _check_attributes(config, header)
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        _check_stamp(header)
    if header.attributes & CODEC_MASK == ZSTD and version < FIRST_VERSION_WITH_ZSTD:
        raise KafkaError(error_codes.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7")
    return header, records


def _not_too_large(config: LogConfig, records: memoryview) -> memoryview:
    """Return a batch without bytes behind it. Raises KafkaError if it is larger than `max.message.bytes`."""
    batch = first_batch(records)
    if len(batch) > config.max_message_bytes:
        raise KafkaError(
            error_codes.MESSAGE_TOO_LARGE,
            f"a batch of {len(batch)} bytes; max.message.bytes is {config.max_message_bytes}",
        )
    return batch


def _check_transactional(header: BatchHeader, transactional: bool) -> None:
    if not transactional:
        reason = "a batch of a transaction in a request without a transactional id"
        raise KafkaError(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, reason)
    if header.producer_id < 0 or header.producer_epoch < 0:
        raise InvalidRecord("a batch of a transaction without a producer id, or without its epoch")


def _check_attributes(config: LogConfig, header: BatchHeader) -> None:
    if header.is_control:
        raise InvalidRecord("clients may not write control batches")
    if not header.is_log_append_time:
        return
    if config.log_append_time or header.max_timestamp_ms == NO_TIMESTAMP_MS:
        raise KafkaError(error_codes.INVALID_TIMESTAMP, "a batch with LogAppendTime, which the broker is to set")
    _check_times(config, header.max_timestamp_ms, header.max_timestamp_ms)


def _check_stamp(header: BatchHeader) -> None:
    if header.base_sequence < 0:
        raise InvalidRecord(f"producer {header.producer_id} sent no sequence number")
    if header.producer_epoch < NO_PRODUCER_EPOCH:
        reason = f"producer {header.producer_id} sent the epoch {header.producer_epoch}"
        raise KafkaError(error_codes.INVALID_PRODUCER_EPOCH, reason)


def _check_times(config: LogConfig, latest_ms: int, earliest_ms: int | None) -> None:
    if config.log_append_time:
        return
    now_ms = time.time_ns() // 1_000_000
    if latest_ms > now_ms + config.message_timestamp_after_max_ms or latest_ms > MAX_INT64:
        raise KafkaError(
            error_codes.INVALID_TIMESTAMP, f"timestamp {latest_ms} is too far ahead (message.timestamp.after.max.ms)"
        )
    if earliest_ms is not None and (
        earliest_ms < now_ms - config.message_timestamp_before_max_ms or earliest_ms < -MAX_INT64
    ):
        raise KafkaError(
            error_codes.INVALID_TIMESTAMP, f"timestamp {earliest_ms} is too old (message.timestamp.before.max.ms)"
        )


@attrs.define(eq=False, repr=False)
class TransactionalProduce:
    """The enrolment of one Produce with a transactional id. Some of its batches may be in no transaction."""

    services: Services
    transactional_id: str
    version: int
    _enrolment: ProducerEnrolment | None = attrs.field(default=None, init=False)

    def check(self, batch: Batch) -> None:
        """Raise KafkaError INVALID_PRODUCER_ID_MAPPING if batches of transactions have different producers."""
        header = batch.header
        if not header.is_transactional:
            return
        identity = ProducerIdentity(self.transactional_id, header.producer_id, header.producer_epoch)
        if self._enrolment is None:
            protocol = transaction_version(self.version, PRODUCE_BUMP_VERSION)
            self._enrolment = ProducerEnrolment(self.services.transactions, identity, protocol)
        elif self._enrolment.identity != identity:
            reason = "Transactional records contained more than one producer ID"
            raise KafkaError(error_codes.INVALID_PRODUCER_ID_MAPPING, reason)

    def waits(self, batches: Sequence[Batch]) -> bool:
        return self._enrolment is not None and self._enrolment.waits(_partitions(batches))

    async def enrol(self, batches: Sequence[Batch]) -> None:
        """Enrol partitions durably if that needs a wait; `enrol_nowait` returns the outcome."""
        if self._enrolment is not None:
            await self._enrolment.ask(_partitions(batches))

    def enrol_alone(self, batch: Batch) -> bool:
        """Enrol the partition of the only batch. False if it needs the general way. Raises KafkaError as `check`."""
        self.check(batch)
        enrolment, partitions = self._enrolment, [batch.partition]
        return enrolment is None or (not enrolment.waits(partitions) and not enrolment.take_nowait(partitions))

    def enrol_nowait(self, batches: Sequence[Batch]) -> Mapping[Batch, KafkaError]:
        """Enrol the partitions of batches that are appended next; return the refused batches with their errors."""
        if self._enrolment is None:
            return {}
        refused = self._enrolment.take_nowait(_partitions(batches))
        return {
            batch: KafkaError(produce_code(refused[batch.partition], self.version))
            for batch in batches
            if batch.header.is_transactional and batch.partition in refused
        }


def _partitions(batches: Sequence[Batch]) -> Sequence[Partition]:
    return [batch.partition for batch in batches if batch.header.is_transactional]
