"""The general way of any Produce request, by the steps in `kafscale.api.produce`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import attrs
import trio

from kafscale.api.handling.calls import Api, Call, Peer
from kafscale.api.handling.gate import NONE_REFUSED
from kafscale.api.handling.partitions import NotLeader, leader_elsewhere, led_partition, name_of, tell_leader
from kafscale.api.handling.record_checks import AT_ONCE_UNITS, FREE_HEADERS_COUNT
from kafscale.api.handling.services import Services
from kafscale.api.produce.batches import Batch, TransactionalProduce, append_batch, begin_batch, refusal_of, refuse
from kafscale.concurrency.turns import STEPS_PER_TURN
from kafscale.errors import DamagedObject, Fenced, KafkaError, ProtocolError, StoreError, WrongOffsetDelta
from kafscale.log.partition.chunks import Lease
from kafscale.log.partition.partition import Placed
from kafscale.log.partition.tail import ALONE
from kafscale.log.wal.journal import Round
from kafscale.wire import error_codes
from kafscale.wire.batch_header import HEADER_BYTES, parse_header
from kafscale.wire.messages.records import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kafscale.wire.record_check import RecordCheck
from kafscale.wire.records import check_of

OLDEST_VERSION_SERVED = 3
FIRST_VERSION_WITH_TOPIC_IDS = ProduceRequest.NEWEST_WITH_NAMES + 1
ACKS_NONE = 0
VALID_ACKS = (-1, 0, 1)
REFUSED_BYTES = 300  # of memory, for the answer to a refused batch, which may take 6 bytes of the request
REFUSED_RECORD_BYTES = 100
FATAL_TO_PRODUCERS = frozenset(  # errors that end a producer or its transaction
    {
        error_codes.INVALID_PRODUCER_EPOCH,
        error_codes.INVALID_PRODUCER_ID_MAPPING,
        error_codes.INVALID_TXN_STATE,
        error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
        error_codes.TRANSACTION_ABORTABLE,
    }
)


@attrs.frozen(eq=False, repr=False)
class _Candidate:
    """A batch and its answer. `is_early` is `ProducerStates.is_early` at the arrival of the batch."""

    batch: Batch
    response: PartitionProduceResponse
    is_early: bool

    def note_refused(self, now_ms: int) -> None:
        """Note a batch that is refused unchecked: later ones wait until its producer sends it again."""
        self.batch.partition.producers.refuse(self.batch.header, now_ms, is_early=self.is_early)


@attrs.define(eq=False, repr=False)
class PendingProduce:
    """A Produce request between its arrival and its reply. Nothing is in the log before `order`.

    `frame_lease` holds the frame until then, if it was received into the pool: batches stay in its memory.
    """

    services: Services
    peer: Peer
    version: int
    acks: int
    frame_lease: Lease | None
    transaction: TransactionalProduce | None  # if the request has a transactional id
    response: ProduceResponse = attrs.field(factory=ProduceResponse)
    candidates: list[_Candidate] = attrs.field(factory=list)
    unchecked: list[_Candidate] = attrs.field(factory=list)
    left_units: int = AT_ONCE_UNITS  # units of checks that `begin` may make
    unpacked_bytes: int = 0  # by `complete`
    headers_left: int = 0  # record headers that `complete` may look at
    rounds: dict[Round, list[PartitionProduceResponse]] = attrs.field(factory=dict)  # with the answers that wait
    incomplete: bool = False  # `complete` must be awaited before `order`
    unconfirmed: list[PartitionProduceResponse] = attrs.field(factory=list)  # refused if this broker still leads
    not_led: list[tuple[str, PartitionProduceResponse]] = attrs.field(factory=list)  # refused, with their topics

    @property
    def throttle_ms(self) -> int:
        return self.response.throttle_time_ms

    @property
    def refused_bytes(self) -> int:
        return sum(
            REFUSED_BYTES + REFUSED_RECORD_BYTES * len(partition.record_errors)
            for topic in self.response.responses
            for partition in topic.partition_responses
            if partition.error_code
        )

    # ---- begin ------------------------------------------------------------------------------------------------

    def begin(self, topic: TopicProduceData, data: PartitionProduceData, response: PartitionProduceResponse) -> None:
        """Validate one batch of the request as far as possible without waiting. Raises KafkaError."""
        if self.acks not in VALID_ACKS:
            raise KafkaError(error_codes.INVALID_REQUIRED_ACKS, f"acks is {self.acks}, not -1, 0 or 1")
        topic_id = topic.topic_id if self.version >= FIRST_VERSION_WITH_TOPIC_IDS else None
        partition = led_partition(self.services, topic.name, data.index, topic_id=topic_id)
        batch = begin_batch(
            self.services,
            partition,
            data.records,
            version=self.version,
            units=self.left_units,
            transactional=self.transaction is not None,
        )
        if self.transaction is not None:
            self.transaction.check(batch)
        self.left_units = batch.left_units
        candidate = _Candidate(batch, response, partition.producers.is_early(batch.header))
        self.candidates.append(candidate)
        if not batch.is_checked:
            self.unchecked.append(candidate)

    def place(self) -> None:
        waits = self.transaction is not None and self.transaction.waits(self._batches())
        self.incomplete = bool(self.unchecked) or self.services.log.journal.is_full or waits
        for candidate in self.candidates:
            if self.incomplete:
                break
            self.incomplete = not self._place(candidate.batch)

    def _batches(self) -> Sequence[Batch]:
        return [candidate.batch for candidate in self.candidates]

    def _place(self, batch: Batch) -> bool:
        """Find memory for a batch until it is in the bucket: that of the frame, or a chunk of the pool."""
        if self.frame_lease is not None:
            self.frame_lease.retain()
            batch.placed = Placed(batch.data, self.frame_lease, ALONE)
        else:
            batch.placed = batch.partition.place_nowait(batch.data)
        return batch.placed is not None

    # ---- complete ---------------------------------------------------------------------------------------------

    async def complete(self, patience_seconds: float) -> bool:
        """Finish the checks, and wait until the log and the pool have room for all batches.

        Returns False after `patience_seconds`: all batches are refused with KAFKA_STORAGE_ERROR, which producers retry.
        """
        self.headers_left = FREE_HEADERS_COUNT + sum(len(candidate.batch.data) for candidate in self.candidates)
        for candidate in self.unchecked:
            try:
                await self._finish_check(candidate.batch)
            except KafkaError as exc:
                refuse(candidate.response, exc)
                self.candidates.remove(candidate)
        self.unchecked.clear()
        with trio.move_on_after(patience_seconds) as patience:
            await self.services.log.journal.wait_for_room()
            await self._place_all()
            if self.transaction is not None:
                await self.transaction.enrol(self._batches())
        if patience.cancelled_caught:
            self.refuse(KafkaError(error_codes.KAFKA_STORAGE_ERROR, "no room for it in time"))
        return not patience.cancelled_caught

    async def _finish_check(self, batch: Batch) -> None:
        checks, check = self.services.record_checks, batch.check
        if not batch.header.codec:
            await self._finish_plain(batch)
            return
        if check is not None:
            await self._walk(check)
            batch.judge(check)
            return
        left_bytes = self.services.settings.limits.max_decompressed_request_bytes - self.unpacked_bytes
        async with checks.unpacking.unpacked(batch.header, batch.data, left_bytes, strict=True) as records:
            self.unpacked_bytes += len(records)
            check = check_of(records, batch.header, needs_keys=batch.partition.config.compact)
            await self._walk(check)
            batch.judge(check)

    async def _finish_plain(self, batch: Batch) -> None:
        checks, check = self.services.record_checks, batch.check
        try:
            if check is not None:
                await self._walk(check)
        except WrongOffsetDelta:
            check = None
        if check is None:
            batch.data = await checks.renumbered(batch.header, batch.data, self.peer.principal)
            batch.header = parse_header(batch.data)
            self.frame_lease = None  # the batch is no longer in the frame, so it must be copied
            check = check_of(batch.data[HEADER_BYTES:], batch.header, needs_keys=batch.partition.config.compact)
            await self._walk(check)
        batch.judge(check)

    async def _walk(self, check: RecordCheck) -> None:
        """Finish a check within the bound of headers of the request. Raises KafkaError."""
        check.headers_left = self.headers_left
        try:
            await self.services.record_checks.walk(check, self.peer.principal)
        finally:
            self.headers_left = max(check.headers_left, 0)

    async def _place_all(self) -> None:
        for candidate in self.candidates:
            batch = candidate.batch
            while batch.placed is None and not self._place(batch):
                lease = await self.services.log.pool.acquire(len(batch.data))
                lease.view[:] = batch.data
                batch.placed = Placed(lease.view, lease, ALONE)

    def refuse(self, exc: KafkaError) -> None:
        now_ms = time.time_ns() // 1_000_000
        for candidate in self.candidates:
            refuse(candidate.response, exc)
            candidate.note_refused(now_ms)
        self.abandon()

    def abandon(self) -> None:
        """Free the memory of all batches, before `order`."""
        for candidate in self.candidates:
            candidate.batch.give_back()
        self.candidates.clear()

    # ---- order ------------------------------------------------------------------------------------------------

    def order(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        if self.transaction is not None:
            self._refuse_unenrolled(self.transaction, now_ms)
        for candidate in self.candidates:
            batch, response = candidate.batch, candidate.response
            response.log_start_offset = batch.partition.log_start_offset
            try:
                appended = append_batch(batch, now_ms, is_enrolled=True, is_early=candidate.is_early)
            except KafkaError as exc:
                self._refuse_placed(response, exc)
                continue
            assert appended, "a batch was ordered before it was placed"
            response.base_offset = batch.base_offset
            response.log_append_time_ms = batch.log_append_time_ms
            if batch.round is not None:
                self.rounds.setdefault(batch.round, []).append(response)
        self.candidates.clear()
        self.frame_lease = None
        if self.acks == ACKS_NONE:
            self._end_if_refused()

    def _refuse_unenrolled(self, transaction: TransactionalProduce, now_ms: int) -> None:
        """Enrol partitions in the same step as their batches; refuse batches as the coordinator says."""
        refusals = transaction.enrol_nowait(self._batches())
        enrolled = []
        for candidate in self.candidates:
            refusal = refusals.get(candidate.batch)
            if refusal is None:
                enrolled.append(candidate)
                continue
            self._refuse_placed(candidate.response, refusal)
            candidate.note_refused(now_ms)
            candidate.batch.give_back()
        self.candidates = enrolled

    def _refuse_placed(self, response: PartitionProduceResponse, exc: KafkaError) -> None:
        refuse(response, exc)
        if exc.code in FATAL_TO_PRODUCERS:
            self.unconfirmed.append(response)

    def _end_if_refused(self) -> None:
        """End the connection if a batch was refused: a producer without replies learns it only so, as in Kafka."""
        for topic in self.response.responses:
            for partition in topic.partition_responses:
                if partition.error_code:
                    name = error_codes.name(partition.error_code)
                    at = f"{topic.name or topic.topic_id.hex()}-{partition.index}"
                    raise ProtocolError(f"produce with acks=0 to {at} was refused: {name}")

    # ---- in the queue, as `Pending` -----------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        for journal_round in self.rounds:
            if not journal_round.done:
                return False
        return not self.unconfirmed

    async def wait(self) -> None:
        """Wait until all batches are durable. Partitions whose journal failed answer KAFKA_STORAGE_ERROR."""
        if self.unconfirmed:
            await self._confirm_refusals()
        for journal_round, responses in self.rounds.items():
            refusal = await refusal_of(journal_round)
            if refusal is not None:
                for response in responses:
                    refuse(response, refusal)
        self._tell_leaders()

    def _tell_leaders(self) -> None:
        for name, response in self.not_led:
            topic = self.services.topics.get(name)
            leader = None if topic is None else leader_elsewhere(self.services, topic, response.index)
            tell_leader(self.services, self.peer, leader, response, self.response)

    async def _confirm_refusals(self) -> None:
        """Check that no other broker has taken over, which might accept batches with a fatal error here."""
        try:
            await self.services.check_lead()
        except (Fenced, StoreError, DamagedObject) as exc:
            for response in self.unconfirmed:
                refuse(response, KafkaError(error_codes.NOT_LEADER_OR_FOLLOWER, str(exc)))

    @property
    def responses(self) -> Sequence[ProduceResponse]:
        return (self.response,)

    @property
    def unencoded(self) -> ProduceResponse | None:
        return None if self.acks == ACKS_NONE else self.response

    @property
    def replies(self) -> Sequence[bytes]:
        return ()


def begin(
    services: Services, call: Call, request: ProduceRequest, *, size_bytes: int, frame_lease: Lease | None
) -> PendingProduce:
    """Check rights, validate every batch and find memory for it, as far as possible without waiting.

    `frame_lease` is that of `PendingProduce`, and stays the caller's. Raises ProtocolError to end the connection.
    """
    pending = _pending(services, call, request, frame_lease)
    for _ in _begin_each(pending, call, request):
        pass
    return _placed(pending, call, size_bytes)


async def begin_in_turns(
    services: Services, call: Call, request: ProduceRequest, *, size_bytes: int, frame_lease: Lease | None
) -> PendingProduce:
    """Do the same for a request with very many partitions; other tasks run in between."""
    pending = _pending(services, call, request, frame_lease)
    try:
        for _ in _begin_each(pending, call, request):
            await trio.lowlevel.checkpoint()
    except BaseException:
        pending.abandon()
        raise
    return _placed(pending, call, size_bytes)


def _pending(services: Services, call: Call, request: ProduceRequest, frame_lease: Lease | None) -> PendingProduce:
    if call.version < OLDEST_VERSION_SERVED:
        raise ProtocolError(f"Produce version {call.version} is not served, only from {OLDEST_VERSION_SERVED} on")
    transaction = None
    if request.transactional_id is not None:
        transaction = TransactionalProduce(services, request.transactional_id, call.version)
    return PendingProduce(services, call.peer, call.version, request.acks, frame_lease, transaction)


def _begin_each(pending: PendingProduce, call: Call, request: ProduceRequest) -> Iterator[None]:
    """Begin all batches; yield after every STEPS_PER_TURN of them and of topics."""
    services, left = pending.services, STEPS_PER_TURN
    for topic in request.topic_data:
        is_known = True
        if call.version >= FIRST_VERSION_WITH_TOPIC_IDS:
            topic.name = name_of(services, topic.topic_id)
            is_known = bool(topic.name)
        topic_response = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
        pending.response.responses.append(topic_response)
        refusals = services.gate.refusals(call, request, topic) if is_known else NONE_REFUSED
        for data in topic.partition_data:
            if left <= 0:
                left = STEPS_PER_TURN
                yield
            left -= 1
            _begin_one(pending, topic, data, topic_response, refusals)
        left -= 1
        if left <= 0:
            left = STEPS_PER_TURN
            yield


def _begin_one(
    pending: PendingProduce,
    topic: TopicProduceData,
    data: PartitionProduceData,
    topic_response: TopicProduceResponse,
    refusals: Mapping[int, KafkaError],
) -> None:
    response = PartitionProduceResponse(index=data.index)
    topic_response.partition_responses.append(response)
    if data.index in refusals:
        refuse(response, refusals[data.index])
        return
    try:
        pending.begin(topic, data, response)
    except KafkaError as exc:
        refuse(response, exc)
        if isinstance(exc, NotLeader):
            pending.not_led.append((topic.name, response))


def _placed(pending: PendingProduce, call: Call, size_bytes: int) -> PendingProduce:
    pending.place()
    pending.response.throttle_time_ms = pending.services.gate.throttle_ms(call, size_bytes)
    return pending


API = Api(0, "Produce", 0, 13, ProduceRequest, ProduceResponse, begin)
