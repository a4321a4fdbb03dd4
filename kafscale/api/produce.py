"""Produce (key 0), versions 0 to 11; 0 to 2 are advertised, as Kafka 4 does, and end the connection when used.

    3  record batches (magic 2) and transactional ids      8  record errors and messages in the response
    5  log start offset in the response                    9  flexible encoding
    7  zstd                                               10  leader hints (KIP-951); 11 as 10

The one API that does not run at its turn in the writer: a connection's reader takes each Produce through these steps as
soon as it is read, so that many are in flight to the disk at once.

    begin      decode, validate and copy into chunks. Nothing is decided yet.                         no await
    complete   only if begin could not finish: check large compressed batches in a thread, and
               wait for the pool. Later requests of this connection wait; nobody else's do.           awaits
    order      check sequences, assign offsets, hand to the journal. The order of these calls is
               the order of the log.                                                                  no await

The reply is sent when every round of the journal that it needs is durable. Requests that are like those before them
take a shorter way through the same checks: `kafscale.api.produce_group`.
"""

from __future__ import annotations

import time

import attrs
import trio

from kafscale.api.calls import Api, Call
from kafscale.api.services import Services
from kafscale.errors import DamagedObject, Fenced, InvalidRecord, KafkaError, ProtocolError, StorageFailed, StoreError
from kafscale.log.partition.chunks import Lease
from kafscale.log.partition.log_config import LogConfig
from kafscale.log.partition.partition import Partition, Placed
from kafscale.log.partition.tail import ALONE
from kafscale.log.wal.local_wal import Round
from kafscale.wire import error_codes
from kafscale.wire.compression import ZSTD
from kafscale.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kafscale.wire.records import (
    CODEC_MASK,
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    keyless_records,
    set_log_append_time,
    validate,
    validate_compressed,
)

CHECKED_IN_THREAD_BYTES = 64 << 10  # unpacking less takes under a millisecond
OLDEST_VERSION_SERVED = 3
FIRST_VERSION_WITH_ZSTD = 7
RECORD_ERRORS_MAX_COUNT = 100  # of one batch; Kafka tells all, which can be many times the size of the batch
ACKS_NONE = 0
VALID_ACKS = (-1, 0, 1)
REFUSED_ATTRIBUTES = CONTROL | LOG_APPEND_TIME | TRANSACTIONAL


@attrs.define(eq=False)
class _Candidate:
    """One partition's batch on its way into the log."""

    partition: Partition
    header: BatchHeader
    data: memoryview
    response: PartitionProduceResponse
    placed: Placed | None = None


@attrs.define(eq=False)
class PendingProduce:
    """A Produce request between its arrival and its reply."""

    services: Services
    version: int
    acks: int
    response: ProduceResponse
    frame_lease: Lease | None
    candidates: list[_Candidate] = attrs.field(factory=list)
    unchecked: list[_Candidate] = attrs.field(factory=list)
    rounds: dict[Round, list[PartitionProduceResponse]] = attrs.field(factory=dict)  # and who waits for each
    incomplete: bool = False  # whether `complete` must be awaited before `order`
    out_of_order: list[PartitionProduceResponse] = attrs.field(factory=list)  # refused, unless we have been superseded

    async def complete(self, patience_seconds: float) -> bool:
        """Check what is large and compressed, and wait until the log and the pool have room for all of it.

        False if they had not in time: then everything is refused with KAFKA_STORAGE_ERROR, which producers retry.
        """
        for candidate in self.unchecked:
            try:
                await trio.to_thread.run_sync(
                    check_records,
                    candidate.partition,
                    candidate.header,
                    candidate.data,
                    self.services.settings.limits.max_decompressed_bytes,
                )
            except KafkaError as exc:
                refuse(candidate.response, exc)
                self.candidates.remove(candidate)
        self.unchecked.clear()
        with trio.move_on_after(patience_seconds) as patience:
            await self.services.log.wait_for_room()
            await self._place_all()
        if patience.cancelled_caught:
            self.refuse(KafkaError(error_codes.KAFKA_STORAGE_ERROR, "no room for it in time"))
        return not patience.cancelled_caught

    def refuse(self, exc: KafkaError) -> None:
        """Refuse every batch, before `order`, with an error that producers retry."""
        now_ms = time.time_ns() // 1_000_000
        for candidate in self.candidates:
            refuse(candidate.response, exc)
            candidate.partition.producers.refuse(candidate.header, now_ms)
        self.abandon()

    async def _place_all(self) -> None:
        for candidate in self.candidates:
            while candidate.placed is None and not self.place(candidate):
                lease = await self.services.log.pool.acquire(len(candidate.data))
                lease.view[:] = candidate.data
                candidate.placed = Placed(lease.view, lease, ALONE)

    def place(self, candidate: _Candidate) -> bool:
        """Find memory for the batch that lasts until it is in the bucket; a large frame has been received into some."""
        if self.frame_lease is not None:
            self.frame_lease.retain()
            candidate.placed = Placed(candidate.data, self.frame_lease, ALONE)
        else:
            candidate.placed = candidate.partition.place_nowait(candidate.data)
        return candidate.placed is not None

    def order(self) -> None:
        """Append every batch that passed, in the order of the request."""
        now_ms = time.time_ns() // 1_000_000
        for candidate in self.candidates:
            try:
                self._append(candidate, now_ms)
            except KafkaError as exc:
                refuse(candidate.response, exc)
                if exc.code == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER and self.services.check_lead is not None:
                    self.out_of_order.append(candidate.response)
        self.candidates.clear()
        if self.acks == ACKS_NONE:
            self._end_if_refused()

    def _append(self, candidate: _Candidate, now_ms: int) -> None:
        partition, header, placed, response = (
            candidate.partition,
            candidate.header,
            candidate.placed,
            candidate.response,
        )
        assert placed is not None
        response.log_start_offset = partition.log_start_offset
        try:
            if partition.closed:
                raise KafkaError(error_codes.UNKNOWN_TOPIC_OR_PARTITION)
            earlier = partition.producers.check(header) if header.producer_id >= 0 else None
        except KafkaError:
            partition.give_back(placed)
            raise
        if earlier is not None:
            partition.give_back(placed)
            response.base_offset = earlier.base_offset
            if earlier.last_offset >= partition.high_watermark:
                self._wait_for(partition, response)
            return
        if partition.config.log_append_time:
            set_log_append_time(placed.data, now_ms)
            header = attrs.evolve(header, max_timestamp_ms=now_ms)
            response.log_append_time_ms = now_ms
        response.base_offset = partition.append(header, placed, now_ms).base_offset
        self._wait_for(partition, response)

    def _wait_for(self, partition: Partition, response: PartitionProduceResponse) -> None:
        newest = partition.latest_round
        assert newest is not None
        self.rounds.setdefault(newest, []).append(response)

    def _end_if_refused(self) -> None:
        """A producer that wants no replies learns of a refusal by losing its connection, as in Kafka."""
        for topic in self.response.responses:
            for partition in topic.partition_responses:
                if partition.error_code:
                    name = error_codes.name(partition.error_code)
                    raise ProtocolError(f"produce with acks=0 to {topic.name}-{partition.index} was refused: {name}")

    @property
    def ready(self) -> bool:
        """Whether the reply may be sent without waiting."""
        for each in self.rounds:
            if not each.done:
                return False
        return not self.out_of_order

    async def wait(self) -> None:
        """Until everything is durable. A partition whose journal failed answers KAFKA_STORAGE_ERROR (retriable)."""
        if self.out_of_order:
            await self._confirm_refusals()
        for each, responses in self.rounds.items():
            if not each.done:
                try:
                    await each.wait()
                except (StorageFailed, trio.TooSlowError) as exc:
                    for response in responses:
                        refuse(response, not_durable(exc))

    async def _confirm_refusals(self) -> None:
        """A gap in the sequence numbers is fatal to a producer, and no gap for a broker that has taken over."""
        assert self.services.check_lead is not None
        try:
            await self.services.check_lead()
        except (Fenced, StoreError, DamagedObject) as exc:
            for response in self.out_of_order:
                refuse(response, KafkaError(error_codes.NOT_LEADER_OR_FOLLOWER, str(exc)))

    def abandon(self) -> None:
        """Refused, or the connection has gone before `order`: give back what was placed."""
        for candidate in self.candidates:
            if candidate.placed is not None:
                candidate.partition.give_back(candidate.placed)
        self.candidates.clear()


def begin(services: Services, call: Call, request: ProduceRequest, frame_lease: Lease | None) -> PendingProduce:
    """Validate and place every batch. `frame_lease` holds the frame if it was received into the pool.

    Raises ProtocolError for what ends the connection.
    """
    if call.version < OLDEST_VERSION_SERVED:
        raise ProtocolError(f"Produce version {call.version} is not served, only from {OLDEST_VERSION_SERVED} on")
    pending = PendingProduce(services, call.version, request.acks, ProduceResponse(), frame_lease)
    for topic in request.topic_data:
        topic_response = TopicProduceResponse(name=topic.name)
        pending.response.responses.append(topic_response)
        for data in topic.partition_data:
            response = PartitionProduceResponse(index=data.index)
            topic_response.partition_responses.append(response)
            try:
                if request.acks not in VALID_ACKS:
                    raise KafkaError(error_codes.INVALID_REQUIRED_ACKS, f"acks is {request.acks}, not -1, 0 or 1")
                _begin_partition(pending, topic.name, data, response)
            except KafkaError as exc:
                refuse(response, exc)
    pending.incomplete = bool(pending.unchecked) or services.log.is_full
    for candidate in pending.candidates:
        if pending.incomplete:
            break
        pending.incomplete = not pending.place(candidate)
    return pending


def _begin_partition(
    pending: PendingProduce, topic: str, data: PartitionProduceData, response: PartitionProduceResponse
) -> None:
    services, version = pending.services, pending.version
    partition = services.log.partition_named(topic, data.index)
    if partition is None:
        raise KafkaError(error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    if not data.records:
        raise InvalidRecord("the request has no record batch for this partition")
    header = validated(partition.config, data.records, version, time.time_ns() // 1_000_000)
    candidate = _Candidate(partition, header, data.records, response)
    if header.codec and len(data.records) > CHECKED_IN_THREAD_BYTES:
        pending.unchecked.append(candidate)
    else:
        check_records(partition, header, data.records, services.settings.limits.max_decompressed_bytes)
    pending.candidates.append(candidate)


def validated(config: LogConfig, records: memoryview, version: int, now_ms: int) -> BatchHeader:
    """Check a batch, but for what is inside of a compressed one and for its keys. Raises KafkaError."""
    if len(records) > config.max_message_bytes:
        raise KafkaError(
            error_codes.MESSAGE_TOO_LARGE,
            f"a batch of {len(records)} bytes; max.message.bytes is {config.max_message_bytes}",
        )
    header = validate(records)
    if header.attributes & REFUSED_ATTRIBUTES:
        _refuse_attributes(header)
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise InvalidRecord(f"producer {header.producer_id} sent no epoch or no sequence number")
    if not config.log_append_time:
        if header.max_timestamp_ms > now_ms + config.message_timestamp_after_max_ms:
            raise KafkaError(
                error_codes.INVALID_TIMESTAMP,
                f"timestamp {header.max_timestamp_ms} is too far ahead (message.timestamp.after.max.ms)",
            )
        if 0 <= header.base_timestamp_ms < now_ms - config.message_timestamp_before_max_ms:
            raise KafkaError(
                error_codes.INVALID_TIMESTAMP,
                f"timestamp {header.base_timestamp_ms} is too old (message.timestamp.before.max.ms)",
            )
    if header.attributes & CODEC_MASK == ZSTD and version < FIRST_VERSION_WITH_ZSTD:
        raise KafkaError(error_codes.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7")
    return header


def _refuse_attributes(header: BatchHeader) -> None:
    if header.is_control:
        raise InvalidRecord("clients may not write control batches")
    if header.is_log_append_time:
        raise KafkaError(error_codes.INVALID_TIMESTAMP, "clients may not write batches with LogAppendTime")
    raise KafkaError(error_codes.INVALID_TXN_STATE, "transactions are not supported")


def check_records(partition: Partition, header: BatchHeader, data: memoryview, max_decompressed_bytes: int) -> None:
    """Check what is inside of a compressed batch, and that a compacted topic gets keys. Raises KafkaError."""
    if header.attributes & CODEC_MASK:
        validate_compressed(data, header, max_decompressed_bytes)
    if partition.config.compact:
        keyless = keyless_records(data, max_decompressed_bytes=max_decompressed_bytes)
        if keyless:
            reason = f"Compacted topic cannot accept message without key in topic partition {partition}."
            raise InvalidRecord(
                f"{len(keyless)} of {header.record_count} records have no key, which a compacted topic needs",
                tuple((index, reason) for index in keyless[:RECORD_ERRORS_MAX_COUNT]),
            )


def refuse(response: PartitionProduceResponse, exc: KafkaError) -> None:
    """Answer a batch with an error."""
    response.error_code = exc.code
    response.error_message = exc.message
    response.base_offset = -1
    if isinstance(exc, InvalidRecord):
        response.record_errors = [
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=reason)
            for index, reason in exc.record_errors
        ]


def not_durable(exc: StorageFailed | trio.TooSlowError) -> KafkaError:
    """The answer to a batch that was appended. After the second a producer without idempotence may repeat it."""
    if isinstance(exc, StorageFailed):
        return KafkaError(error_codes.KAFKA_STORAGE_ERROR, str(exc))
    return KafkaError(error_codes.REQUEST_TIMED_OUT, str(exc))


API = Api(0, "Produce", 0, 11, ProduceRequest, ProduceResponse, begin)
