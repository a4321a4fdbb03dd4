"""The coordinator of one partition of `__transaction_state`: every transactional id that hashes to it.

A call decides at once, on top of earlier decisions that need not be durable yet. While markers are outstanding, for
other brokers or during a hand-over, the answer is CONCURRENT_TRANSACTIONS. A transaction whose markers are all written
has no COMPLETE record at first: it is *owed*. Most ids go on before it is written, and their next record, behind the
markers, says the same. Markers for other brokers leave the coordinator (`done`) when the decision is durable.

Kafka's `TransactionCoordinator` is the measure for every answer, with these exceptions:

- InitProducerId that finds a transaction ongoing aborts it and answers with the new epoch. Kafka answers
  CONCURRENT_TRANSACTIONS, and decides when the request is repeated.
- InitProducerId that names another epoch than the present one (KIP-360) does not abort the present one's transaction.
- The last possible epoch is never given to a producer: one that names it is fenced.
- EndTxn of version 2 is taken for a repeated one only if version 2 has ended the transaction before.

Nothing here waits, reads a clock or raises for a client's request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.ledger import (
    CoordinatorOutcome,
    Held,
    InitProducerId,
    Ledger,
    MarkersToSend,
    PartitionsReply,
    ProducerIdentity,
    ProducerReply,
    Reply,
)
from kafscale.cluster.transactions.transaction import EPOCH_BUMP_VERSION, LAST_GIVEN_EPOCH, ProducerTransaction
from kafscale.cluster.transactions.values import (
    DUE_MAX_COUNT,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    PRODUCER_EPOCH_MAX,
    Marker,
    StateRecord,
    TransactionState,
    decode_state,
)
from kafscale.wire.batch_header import BatchHeader
from kafscale.wire.control_records import EndMarker
from kafscale.wire.error_codes import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_REQUEST,
    INVALID_TRANSACTION_TIMEOUT,
    INVALID_TXN_STATE,
    NONE,
    NOT_COORDINATOR,
    POLICY_VIOLATION,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
)
from kafscale.wire.records import Record


@attrs.frozen(kw_only=True)
class _Ended:
    """The end of a transaction: the state after it, the entries to write, and the markers that others must write."""

    transaction: ProducerTransaction
    entries: tuple[StateRecord | Marker, ...]
    outstanding: tuple[Marker, ...] = ()
    is_owed: bool = False


@attrs.define(eq=False, kw_only=True, repr=False)
class TransactionCoordinator(Ledger):
    """The transactional ids of one partition, since this broker leads it."""

    partition: int  # of `__transaction_state`
    coordinator_epoch: int  # leader epoch of that partition
    leads: Callable[[TopicPartition], bool]  # tells whether a marker can be written here now, in the same group
    _loaded: dict[str, ProducerTransaction] = attrs.field(factory=dict, init=False)  # until `begin`

    # -- Loading -----------------------------------------------------------------------------------------------------

    def apply(self, record: Record, _header: BatchHeader) -> None:
        """Apply a record of the partition. Raises DecodeError, and ValueError for a state that Kafka does not have."""
        state = decode_state(record)
        if state is not None:
            self.apply_state(state)

    def apply_state(self, record: StateRecord) -> None:
        """Replace or delete the state of an id. Raises ValueError as `apply`."""
        if record.value is None or record.value.transaction_status == TransactionState.DEAD:
            self._loaded.pop(record.transactional_id, None)
        else:
            self._loaded[record.transactional_id] = ProducerTransaction.of(record.transactional_id, record.value)

    def apply_marker(self, marker: EndMarker) -> None:
        """Ignore the marker of a transaction: `__transaction_state` has none."""

    def begin(self) -> None:
        """Coordinate the loaded ids. The caller must call `resume` next."""
        self.restore(self._loaded.values())
        self._loaded.clear()

    # -- InitProducerId ----------------------------------------------------------------------------------------------

    def init_producer_id(
        self, request: InitProducerId, *, new_producer_id: int | None = None, now_ms: int
    ) -> CoordinatorOutcome[ProducerReply]:
        """Give a producer its id and epoch, and fence the producer with the epoch before.

        Without `new_producer_id`, an unused id, the outcome may be `needs_producer_id`.
        """
        transactional_id = request.transactional_id
        error = self._refusal(transactional_id)
        if error == NONE and (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
            error = INVALID_REQUEST
        if error == NONE and not 0 < request.transaction_timeout_ms <= self.settings.transaction_max_timeout_ms:
            error = INVALID_TRANSACTION_TIMEOUT
        if error != NONE:
            return self.answer(transactional_id, ProducerReply(error_code=error))
        held = self.get(transactional_id)
        if held is None:
            return self._first_init(request, new_producer_id, now_ms)
        transaction = held.transaction
        error = _init_verdict(transaction, request)
        if error != NONE:
            return self.answer(transactional_id, ProducerReply(error_code=error))
        if transaction.state is not TransactionState.ONGOING:
            return self._next_init(request, new_producer_id, transaction, (), now_ms=now_ms)
        named = None if request.producer_id == NO_PRODUCER_ID else request.producer_epoch
        ended = self._end(transaction.fenced(now_ms=now_ms, last_producer_epoch=named), now_ms)
        if ended.outstanding:
            reply = ProducerReply(error_code=CONCURRENT_TRANSACTIONS)
            return self.decide(transactional_id, ended.transaction, ended.entries, reply, outstanding=ended.outstanding)
        return self._next_init(request, new_producer_id, ended.transaction, ended.entries, now_ms=now_ms)

    def _first_init(
        self, request: InitProducerId, new_producer_id: int | None, now_ms: int
    ) -> CoordinatorOutcome[ProducerReply]:
        if self.places.is_full:
            return CoordinatorOutcome(reply=ProducerReply(error_code=POLICY_VIOLATION))
        if new_producer_id is None:
            return _NEEDS_PRODUCER_ID
        transaction = ProducerTransaction(
            transactional_id=request.transactional_id,
            producer_id=new_producer_id,
            previous_producer_id=new_producer_id,  # as Kafka writes it
            producer_epoch=0,
            timeout_ms=request.transaction_timeout_ms,
            state=TransactionState.EMPTY,
            last_update_timestamp_ms=now_ms,
        )
        return self._initialised(transaction, ())

    def _next_init(
        self,
        request: InitProducerId,
        new_producer_id: int | None,
        transaction: ProducerTransaction,
        entries: tuple[StateRecord | Marker, ...],
        *,
        now_ms: int,
    ) -> CoordinatorOutcome[ProducerReply]:
        """Give the next epoch. `entries` are those of an abort, to be written first."""
        timeout_ms = request.transaction_timeout_ms
        is_named = request.producer_id != NO_PRODUCER_ID
        is_repeated = is_named and not entries and request.producer_epoch == transaction.last_producer_epoch
        if is_repeated and transaction.producer_epoch <= LAST_GIVEN_EPOCH:
            return self._initialised(transaction.with_same_epoch(timeout_ms=timeout_ms, now_ms=now_ms), entries)
        last_epoch = request.producer_epoch if is_named else NO_PRODUCER_EPOCH
        if not transaction.is_exhausted:
            following = transaction.with_new_epoch(timeout_ms=timeout_ms, now_ms=now_ms, last_producer_epoch=last_epoch)
        elif new_producer_id is None:
            return _NEEDS_PRODUCER_ID
        else:
            following = transaction.with_new_producer_id(
                new_producer_id, timeout_ms=timeout_ms, now_ms=now_ms, last_producer_epoch=last_epoch
            )
        return self._initialised(following, entries)

    def _initialised(
        self, transaction: ProducerTransaction, entries: tuple[StateRecord | Marker, ...]
    ) -> CoordinatorOutcome[ProducerReply]:
        entries = (*entries, transaction.record())
        return self.decide(transaction.transactional_id, transaction, entries, _who(transaction))

    # -- Enrolment ---------------------------------------------------------------------------------------------------

    def add_partitions(
        self,
        identity: ProducerIdentity,
        partitions: frozenset[TopicPartition],
        *,
        transaction_version: int,
        now_ms: int,
    ) -> CoordinatorOutcome[PartitionsReply]:
        """Enrol partitions, which must exist. The caller may append a batch for one behind the outcome's entries."""
        held, error = self._identified(identity)
        if held is None:
            return self.answer(identity.transactional_id, PartitionsReply(error_code=error))
        transaction = held.transaction
        former = transaction.partitions if transaction.state is TransactionState.ONGOING else frozenset()
        if transaction.state is TransactionState.ONGOING and partitions <= former:
            return self.answer(identity.transactional_id, PartitionsReply())
        if len(former | partitions) > self.settings.limits.max_transaction_partitions_count:
            # A client that knows the second code can abort the transaction and go on.
            error = POLICY_VIOLATION if transaction_version < EPOCH_BUMP_VERSION else TRANSACTION_ABORTABLE
            return self.answer(identity.transactional_id, PartitionsReply(error_code=error))
        enrolled = transaction.enrolled(partitions, transaction_version=transaction_version, now_ms=now_ms)
        return self.decide(identity.transactional_id, enrolled, (enrolled.record(),), PartitionsReply())

    def verify_partitions(
        self, identity: ProducerIdentity, partitions: frozenset[TopicPartition]
    ) -> CoordinatorOutcome[PartitionsReply]:
        """Tell which partitions are enrolled, for a transactional Produce below version 12 (KIP-890, part 1)."""
        held, error = self._identified(identity)
        if held is None:
            return self.answer(identity.transactional_id, PartitionsReply(error_code=error))
        missing = partitions - held.transaction.partitions
        return self.answer(identity.transactional_id, PartitionsReply(not_enrolled=missing))

    def _identified(self, identity: ProducerIdentity) -> tuple[Held | None, int]:
        """Return the producer's open state, or the error that refuses the request."""
        error = self._refusal(identity.transactional_id)
        if error != NONE:
            return None, error
        held = self.get(identity.transactional_id)
        if held is None or held.transaction.producer_id != identity.producer_id:
            return None, INVALID_PRODUCER_ID_MAPPING
        if identity.producer_epoch != held.transaction.producer_epoch or identity.producer_epoch > LAST_GIVEN_EPOCH:
            return None, PRODUCER_FENCED
        if held.transaction.state.is_prepared:
            return None, CONCURRENT_TRANSACTIONS
        return held, NONE

    # -- EndTxn ------------------------------------------------------------------------------------------------------

    def end_transaction(
        self,
        identity: ProducerIdentity,
        *,
        committed: bool,
        transaction_version: int,
        new_producer_id: int | None = None,
        now_ms: int,
    ) -> CoordinatorOutcome[ProducerReply]:
        """Commit or abort, as the producer wants. `new_producer_id` is that of `init_producer_id`."""
        transactional_id = identity.transactional_id
        error = self._refusal(transactional_id)
        held = self.get(transactional_id)
        if error == NONE and held is None:
            error = INVALID_PRODUCER_ID_MAPPING
        if error != NONE or held is None:
            return self.answer(transactional_id, ProducerReply(error_code=error))
        transaction = held.transaction
        bumps = transaction_version >= EPOCH_BUMP_VERSION
        verdict = (_bumping_end_verdict if bumps else _plain_end_verdict)(transaction, identity, committed)
        if verdict is not None:
            known = verdict == NONE and bumps
            return self.answer(transactional_id, _who(transaction) if known else ProducerReply(error_code=verdict))
        next_producer_id = NO_PRODUCER_ID
        if bumps and transaction.is_exhausted:
            if new_producer_id is None:
                return _NEEDS_PRODUCER_ID
            next_producer_id = new_producer_id
        prepared = transaction.ended(
            committed=committed,
            transaction_version=transaction_version,
            now_ms=now_ms,
            next_producer_id=next_producer_id,
        )
        producer_id, epoch = prepared.following_producer
        reply = ProducerReply(producer_id=producer_id, producer_epoch=epoch) if bumps else ProducerReply()
        return self._ended(prepared, now_ms, reply)

    def markers_written(
        self, sent: MarkersToSend, partitions: frozenset[TopicPartition], *, now_ms: int
    ) -> CoordinatorOutcome[None]:
        """Note partitions without need of a marker; the last completes. Repeat if the outcome is undone."""
        held = self.get(sent.transactional_id)
        if held is not None and held.transaction.state.is_prepared:
            transaction = held.transaction
            is_same = (sent.producer_id, sent.producer_epoch) == (transaction.producer_id, transaction.producer_epoch)
            if is_same and not self.written(sent.transactional_id, partitions):
                completed = transaction.completed(now_ms=now_ms)
                return self.decide(sent.transactional_id, completed, (completed.record(),), None)
        return self.answer(sent.transactional_id, None)

    def _ended(self, prepared: ProducerTransaction, now_ms: int, reply: Reply) -> CoordinatorOutcome[Reply]:
        ended = self._end(prepared, now_ms)
        return self.decide(
            prepared.transactional_id,
            ended.transaction,
            ended.entries,
            reply,
            outstanding=ended.outstanding,
            is_owed=ended.is_owed,
        )

    def _end(self, prepared: ProducerTransaction, now_ms: int) -> _Ended:
        """Write PREPARE and the markers that can be written here. If those are all, the transaction is complete."""
        return self._finish(prepared, prepared.partitions, now_ms, decision=(prepared.record(),))

    def _finish(
        self,
        prepared: ProducerTransaction,
        missing: frozenset[TopicPartition],
        now_ms: int,
        *,
        decision: tuple[StateRecord, ...] = (),
    ) -> _Ended:
        """Write the markers that can be written here, behind the decision unless that is written already."""
        here = frozenset(filter(self.leads, missing))
        markers = self._markers(prepared, here)
        if here != missing:
            elsewhere = self._markers(prepared, missing - here)
            return _Ended(transaction=prepared, entries=(*decision, *markers), outstanding=elsewhere)
        completed = prepared.completed(now_ms=now_ms)
        if decision:
            return _Ended(transaction=completed, entries=(*decision, *markers), is_owed=True)
        return _Ended(transaction=completed, entries=(*markers, completed.record()))

    def _markers(self, prepared: ProducerTransaction, partitions: frozenset[TopicPartition]) -> tuple[Marker, ...]:
        return tuple(
            Marker(
                partition=at,
                producer_id=prepared.producer_id,
                producer_epoch=prepared.producer_epoch,
                coordinator_epoch=self.coordinator_epoch,
                committed=prepared.state is TransactionState.PREPARE_COMMIT,
                transaction_version=prepared.client_transaction_version,
            )
            for at in sorted(partitions)
        )

    # -- Without a request ------------------------------------------------------------------------------------------

    def resume(self, *, now_ms: int) -> Iterator[CoordinatorOutcome[None]]:
        """Finish prepared transactions after a start or change of leaders. Write each before the next."""
        # Outstanding markers are sent again. For version 1 that is safe only if no broker can still receive the former
        # ones: their epoch is also that of the producer's next transaction.
        self.begin_by(now_ms)  # another broker's clock may have been ahead
        for transactional_id in self.unfinished():
            held = self.get(transactional_id)
            if held is None:
                continue
            transaction = held.transaction
            if transaction.state is TransactionState.PREPARE_EPOCH_FENCE:
                yield self._ended(transaction.fenced(now_ms=now_ms), now_ms, None)
            elif transaction.state.is_prepared:
                yield self._resumed(held, self._finish(transaction, held.outstanding, now_ms))

    def _resumed(self, held: Held, ended: _Ended) -> CoordinatorOutcome[None]:
        transactional_id = held.transaction.transactional_id
        if ended.entries:
            return self.decide(transactional_id, ended.transaction, ended.entries, None, outstanding=ended.outstanding)
        self.withhold(held, ended.outstanding)
        return self.answer(transactional_id, None)

    def due(self, *, now_ms: int) -> Iterator[CoordinatorOutcome[None]]:
        """Abort and forget what is due, DUE_MAX_COUNT at most. Write each outcome before the next one."""
        for _ in range(DUE_MAX_COUNT):
            held = self.take_due(now_ms)
            if held is None:
                return
            transaction = held.transaction
            if transaction.state is TransactionState.ONGOING:
                yield self._ended(transaction.fenced(now_ms=now_ms), now_ms, None)
            else:
                tombstone = StateRecord(transaction.transactional_id, None)
                yield self.decide(transaction.transactional_id, None, (tombstone,), None)

    def _refusal(self, transactional_id: str) -> int:
        if self.is_resigned:
            return NOT_COORDINATOR
        return NONE if transactional_id else INVALID_REQUEST


# If this reply were sent, the client would ask again.
_NEEDS_PRODUCER_ID = CoordinatorOutcome(reply=ProducerReply(error_code=CONCURRENT_TRANSACTIONS), needs_producer_id=True)


def _who(transaction: ProducerTransaction) -> ProducerReply:
    return ProducerReply(producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch)


def _init_verdict(transaction: ProducerTransaction, request: InitProducerId) -> int:
    """Return the error for an InitProducerId. One that names no epoch is always accepted (KIP-360)."""
    if transaction.state.is_prepared:
        fenced = request.producer_id not in (NO_PRODUCER_ID, transaction.producer_id, transaction.previous_producer_id)
        return PRODUCER_FENCED if fenced else CONCURRENT_TRANSACTIONS
    if request.producer_id == NO_PRODUCER_ID:
        return NONE
    is_last = request.producer_epoch == transaction.last_producer_epoch
    if request.producer_id != transaction.producer_id:  # maybe it did not get the reply that gave it a new one
        return NONE if request.producer_id == transaction.previous_producer_id and is_last else PRODUCER_FENCED
    if transaction.state is TransactionState.ONGOING:  # its producer has the present epoch
        is_last = False
    is_present = request.producer_epoch == transaction.producer_epoch
    return NONE if is_last or (is_present and request.producer_epoch < PRODUCER_EPOCH_MAX) else PRODUCER_FENCED


def _plain_end_verdict(transaction: ProducerTransaction, identity: ProducerIdentity, committed: bool) -> int | None:
    """Return the error for an EndTxn of version 1, NONE for a repeated request, or None to end the transaction."""
    if transaction.producer_id != identity.producer_id:
        return INVALID_PRODUCER_ID_MAPPING
    if transaction.producer_epoch != identity.producer_epoch:
        return PRODUCER_FENCED
    return _judge_state(transaction.state, committed)


def _bumping_end_verdict(transaction: ProducerTransaction, identity: ProducerIdentity, committed: bool) -> int | None:
    """Do the same for version 2, whose epoch tells a new request from a repeated one."""
    epoch = identity.producer_epoch
    went_over = transaction.previous_producer_id == identity.producer_id and (
        epoch == LAST_GIVEN_EPOCH and transaction.producer_epoch == 0
    )
    if transaction.producer_id != identity.producer_id and not went_over:
        return INVALID_PRODUCER_ID_MAPPING
    state = transaction.state
    # Only the end of a transaction by version 2 has bumped the epoch for the producer itself. Kafka 4.1 does not check
    # that: it gives a zombie of version 2 the epoch of a version 1 producer that has ended a transaction since.
    bumped = transaction.client_transaction_version >= EPOCH_BUMP_VERSION
    is_repeated = bumped and (went_over or epoch + 1 == transaction.producer_epoch)
    if state.is_prepared or (is_repeated and state in _COMPLETE):
        return _judge_state(state, committed) if is_repeated else PRODUCER_FENCED
    if epoch != transaction.producer_epoch or epoch > LAST_GIVEN_EPOCH:
        return PRODUCER_FENCED
    if state is TransactionState.ONGOING or not committed:
        return None  # an abort of nothing too: the client can't know that its first batch never arrived
    return INVALID_TXN_STATE


_COMPLETE = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


def _judge_state(state: TransactionState, committed: bool) -> int | None:
    """Return the same for a request with the right epoch, by the state of the transaction."""
    if state is TransactionState.ONGOING:
        return None
    prepared = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
    completed = TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
    if state is prepared:
        return CONCURRENT_TRANSACTIONS
    return NONE if state is completed else INVALID_TXN_STATE
