"""The coordinator of one partition of `__transaction_state`: every transactional id that hashes to it.

A call decides at once, on top of earlier decisions that need not be durable yet, so no request waits for a disk to
learn that a transaction has ended. Where this broker leads every partition of a transaction, PREPARE and the markers
are entries of one group, and the next request finds the transaction complete. CONCURRENT_TRANSACTIONS is answered only
while markers are outstanding: while other brokers have to write them, or a partition is being handed over.

That such a transaction is complete is owed to the log: it is in no record before `completions` is asked for, and never
if the id has gone on by then, as most do. The record of the next transaction, or of the next InitProducerId, is behind
the markers, and says the same of the former one. What a crash leaves is then what it leaves of any group that was cut
off behind its markers: a decision whose markers are written again, and ignored where they are. A transaction of one
record writes four batches so, not five.

What is told is durable first: a reply waits for its own group, and one about what an earlier group has decided waits
for that (`Outcome.group`). Markers for other brokers leave the coordinator (`done`) when the decision is durable.

Kafka's `TransactionCoordinator` is the measure for every answer, but for these:

- InitProducerId that finds a transaction ongoing aborts it and answers with the new epoch, where Kafka answers
  CONCURRENT_TRANSACTIONS and decides when it is repeated.
- InitProducerId that names another epoch than the present one (KIP-360) does not abort the present one's transaction.
- The last possible epoch is never given to a producer: one that names it is fenced.
- EndTxn of version 2 is taken for a repeated one only where version 2 has ended the transaction before.

Nothing here waits, reads a clock or raises for what a client sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.ledger import Ledger, Places
from kafscale.cluster.transactions.requests import (
    AddPartitions,
    CoordinatorOutcome,
    EndTransaction,
    Held,
    InitProducerId,
    MarkersToSend,
    MarkersWritten,
    PartitionsReply,
    ProducerIdentity,
    ProducerReply,
    Reply,
    VerifyPartitions,
)
from kafscale.cluster.transactions.settings import DUE_MAX_COUNT, TransactionSettings
from kafscale.cluster.transactions.state_records import decode_state
from kafscale.cluster.transactions.transaction import EPOCH_BUMP_VERSION, LAST_GIVEN_EPOCH, ProducerTransaction
from kafscale.cluster.transactions.values import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Marker,
    StateRecord,
    TransactionState,
)
from kafscale.cluster.transactions.verdicts import bumping_end_verdict, init_verdict, plain_end_verdict
from kafscale.wire.batch_header import BatchHeader
from kafscale.wire.control_records import EndMarker
from kafscale.wire.error_codes import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_REQUEST,
    INVALID_TRANSACTION_TIMEOUT,
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
class TransactionCoordinator:
    """The transactional ids of one partition, since this broker leads it."""

    partition: int  # of `__transaction_state`
    coordinator_epoch: int  # the leader epoch of that
    settings: TransactionSettings
    leads: Callable[[TopicPartition], bool]  # whether a marker can be written here now, in the same group
    places: Places
    _ledger: Ledger = attrs.field(init=False)
    _loaded: dict[str, ProducerTransaction] = attrs.field(factory=dict, init=False)  # until `begin`
    _resigned: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._ledger = Ledger(self.settings, self.places)

    # -- Loading -----------------------------------------------------------------------------------------------------

    def apply(self, record: Record, _header: BatchHeader) -> None:
        """Apply a record of the partition. Raises DecodeError, and ValueError for a state that Kafka does not have."""
        state = decode_state(record)
        if state is not None:
            self.apply_state(state)

    def apply_state(self, record: StateRecord) -> None:
        """Apply a record of the partition: the last one of an id counts. Raises ValueError as `apply`."""
        if record.value is None or record.value.transaction_status == TransactionState.DEAD:
            self._loaded.pop(record.transactional_id, None)
        else:
            self._loaded[record.transactional_id] = ProducerTransaction.of(record.transactional_id, record.value)

    def apply_marker(self, marker: EndMarker) -> None:
        """Ignore the marker of a transaction: `__transaction_state` has none."""

    def begin(self) -> None:
        """Coordinate the loaded ids; `resume` is to be called next."""
        self.restore(self._loaded.values())
        self._loaded.clear()

    def restore(self, transactions: Iterable[ProducerTransaction]) -> None:
        """Coordinate these ids, also those beyond the limit, so that their transactions end."""
        for transaction in transactions:
            self._ledger.restore(transaction)

    # -- Who is asked, and what is known -----------------------------------------------------------------------------

    @property
    def is_resigned(self) -> bool:
        """Tell whether this broker coordinates these ids no more, or must not."""
        return self._resigned

    @property
    def is_settled(self) -> bool:
        """Tell whether all that was decided is durable, so that a question about all ids may be answered at once."""
        return self._ledger.is_settled

    def owed(self) -> Sequence[Held]:
        """Return what is complete without a record that says so, for `completions` later on."""
        return self._ledger.owed()

    def __len__(self) -> int:
        return len(self._ledger)

    def held(self) -> Iterator[Held]:
        """Return every id and what is known of it."""
        return iter(self._ledger)

    def get(self, transactional_id: str) -> Held | None:
        return self._ledger.get(transactional_id)

    def resign(self) -> None:
        """Decide nothing more: the partition is led elsewhere, or what was decided can't be written.

        What the log has is the truth from now on, and nothing of this coordinator is.
        """
        if not self._resigned:
            self._resigned = True
            self._ledger.clear()

    # -- After a decision --------------------------------------------------------------------------------------------

    def is_durable(self, outcome: CoordinatorOutcome[Reply]) -> bool:
        """Tell whether the reply may be sent already."""
        return self._ledger.is_durable(outcome.group)

    def done(self, outcome: CoordinatorOutcome[Reply]) -> tuple[MarkersToSend, ...]:
        """Learn that the outcome's group is durable, and all before it; return what other brokers are to write now."""
        return self._ledger.done(outcome.group)

    def undo(self, outcome: CoordinatorOutcome[Reply]) -> None:
        """Take back the last decision: nothing of its group was, or will be, written."""
        if not self._resigned:
            self._ledger.undo(outcome)

    # -- InitProducerId ----------------------------------------------------------------------------------------------

    def init_producer_id(self, request: InitProducerId, *, now_ms: int) -> CoordinatorOutcome[ProducerReply]:
        """Give a producer its id and epoch, and fence the producer with the epoch before."""
        transactional_id = request.transactional_id
        error = self._refusal(transactional_id)
        if error == NONE and (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
            error = INVALID_REQUEST
        if error == NONE and not 0 < request.transaction_timeout_ms <= self.settings.transaction_max_timeout_ms:
            error = INVALID_TRANSACTION_TIMEOUT
        if error != NONE:
            return self._ledger.answer(transactional_id, ProducerReply(error_code=error))
        held = self._ledger.get(transactional_id)
        if held is None:
            return self._first_init(request, now_ms)
        transaction = held.transaction
        error = init_verdict(transaction, request)
        if error != NONE:
            return self._ledger.answer(transactional_id, ProducerReply(error_code=error))
        if transaction.state is not TransactionState.ONGOING:
            return self._next_init(request, transaction, (), now_ms)
        named = None if request.producer_id == NO_PRODUCER_ID else request.producer_epoch
        ended = self._end(transaction.fenced(now_ms=now_ms, last_producer_epoch=named), now_ms)
        if ended.outstanding:
            reply = ProducerReply(error_code=CONCURRENT_TRANSACTIONS)
            return self._ledger.decide(
                transactional_id, ended.transaction, ended.entries, reply, outstanding=ended.outstanding
            )
        return self._next_init(request, ended.transaction, ended.entries, now_ms)

    def _first_init(self, request: InitProducerId, now_ms: int) -> CoordinatorOutcome[ProducerReply]:
        if self.places.is_full:
            return CoordinatorOutcome(reply=ProducerReply(error_code=POLICY_VIOLATION))
        if request.new_producer_id is None:
            return _NEEDS_PRODUCER_ID
        transaction = ProducerTransaction(
            transactional_id=request.transactional_id,
            producer_id=request.new_producer_id,
            previous_producer_id=request.new_producer_id,  # as Kafka writes it
            producer_epoch=0,
            timeout_ms=request.transaction_timeout_ms,
            state=TransactionState.EMPTY,
            last_update_timestamp_ms=now_ms,
        )
        return self._initialised(transaction, ())

    def _next_init(
        self,
        request: InitProducerId,
        transaction: ProducerTransaction,
        entries: tuple[StateRecord | Marker, ...],
        now_ms: int,
    ) -> CoordinatorOutcome[ProducerReply]:
        """Give the next epoch. What was to be written before that, for an abort, is in `entries`."""
        timeout_ms = request.transaction_timeout_ms
        is_named = request.producer_id != NO_PRODUCER_ID
        is_repeated = is_named and not entries and request.producer_epoch == transaction.last_producer_epoch
        if is_repeated and transaction.producer_epoch <= LAST_GIVEN_EPOCH:
            return self._initialised(transaction.with_same_epoch(timeout_ms=timeout_ms, now_ms=now_ms), entries)
        last_epoch = request.producer_epoch if is_named else NO_PRODUCER_EPOCH
        if not transaction.is_exhausted:
            following = transaction.with_new_epoch(timeout_ms=timeout_ms, now_ms=now_ms, last_producer_epoch=last_epoch)
        elif request.new_producer_id is None:
            return _NEEDS_PRODUCER_ID
        else:
            following = transaction.with_new_producer_id(
                request.new_producer_id, timeout_ms=timeout_ms, now_ms=now_ms, last_producer_epoch=last_epoch
            )
        return self._initialised(following, entries)

    def _initialised(
        self, transaction: ProducerTransaction, entries: tuple[StateRecord | Marker, ...]
    ) -> CoordinatorOutcome[ProducerReply]:
        return self._ledger.decide(
            transaction.transactional_id,
            transaction,
            (*entries, transaction.record()),
            ProducerReply(producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch),
        )

    # -- Taking part -------------------------------------------------------------------------------------------------

    def add_partitions(self, request: AddPartitions, *, now_ms: int) -> CoordinatorOutcome[PartitionsReply]:
        """Enrol partitions. A batch for one of them may be appended behind the outcome's entries."""
        identity = request.identity
        held, error = self._identified(identity)
        if held is None:
            return self._ledger.answer(identity.transactional_id, PartitionsReply(error_code=error))
        transaction = held.transaction
        if transaction.state is TransactionState.ONGOING and request.partitions <= transaction.partitions:
            return self._ledger.answer(identity.transactional_id, PartitionsReply())
        former = transaction.partitions if transaction.state is TransactionState.ONGOING else frozenset()
        if len(former | request.partitions) > self.settings.max_partition_count:
            # A client that knows the second code can abort the transaction and go on.
            is_new = request.transaction_version >= EPOCH_BUMP_VERSION
            error = TRANSACTION_ABORTABLE if is_new else POLICY_VIOLATION
            return self._ledger.answer(identity.transactional_id, PartitionsReply(error_code=error))
        enrolled = transaction.enrolled(
            request.partitions, transaction_version=request.transaction_version, now_ms=now_ms
        )
        return self._ledger.decide(identity.transactional_id, enrolled, (enrolled.record(),), PartitionsReply())

    def verify_partitions(self, request: VerifyPartitions) -> CoordinatorOutcome[PartitionsReply]:
        """Tell which partitions take part in the transaction of now."""
        identity = request.identity
        held, error = self._identified(identity)
        if held is None:
            return self._ledger.answer(identity.transactional_id, PartitionsReply(error_code=error))
        missing = request.partitions - held.transaction.partitions
        return self._ledger.answer(identity.transactional_id, PartitionsReply(not_enrolled=missing))

    def _identified(self, identity: ProducerIdentity) -> tuple[Held | None, int]:
        """Return what the producer may work on; or why it may not."""
        error = self._refusal(identity.transactional_id)
        if error != NONE:
            return None, error
        held = self._ledger.get(identity.transactional_id)
        if held is None or held.transaction.producer_id != identity.producer_id:
            return None, INVALID_PRODUCER_ID_MAPPING
        if identity.producer_epoch != held.transaction.producer_epoch or identity.producer_epoch > LAST_GIVEN_EPOCH:
            return None, PRODUCER_FENCED
        if held.transaction.state.is_prepared:
            return None, CONCURRENT_TRANSACTIONS
        return held, NONE

    # -- The end -----------------------------------------------------------------------------------------------------

    def end_transaction(self, request: EndTransaction, *, now_ms: int) -> CoordinatorOutcome[ProducerReply]:
        """Commit or abort, as the producer wants it."""
        transactional_id = request.identity.transactional_id
        error = self._refusal(transactional_id)
        held = self._ledger.get(transactional_id)
        if error == NONE and held is None:
            error = INVALID_PRODUCER_ID_MAPPING
        if error != NONE or held is None:
            return self._ledger.answer(transactional_id, ProducerReply(error_code=error))
        transaction = held.transaction
        bumps = request.transaction_version >= EPOCH_BUMP_VERSION
        verdict = bumping_end_verdict(transaction, request) if bumps else plain_end_verdict(transaction, request)
        if verdict is not None:
            known = verdict == NONE and bumps
            reply = _who(transaction) if known else ProducerReply(error_code=verdict)
            return self._ledger.answer(transactional_id, reply)
        next_producer_id = NO_PRODUCER_ID
        if bumps and transaction.is_exhausted:
            if request.new_producer_id is None:
                return _NEEDS_PRODUCER_ID
            next_producer_id = request.new_producer_id
        prepared = transaction.ended(
            committed=request.committed,
            transaction_version=request.transaction_version,
            now_ms=now_ms,
            next_producer_id=next_producer_id,
        )
        return self._ended(prepared, now_ms, _who_follows(prepared) if bumps else ProducerReply())

    def markers_written(self, written: MarkersWritten, *, now_ms: int) -> CoordinatorOutcome[None]:
        """Learn where markers are durable; the last one completes the transaction.

        Where its outcome had to be taken back, it is to be told again.
        """
        held = self._ledger.get(written.transactional_id)
        if held is None or not held.transaction.state.is_prepared:
            return self._ledger.answer(written.transactional_id, None)
        transaction = held.transaction
        same = (written.producer_id, written.producer_epoch) == (transaction.producer_id, transaction.producer_epoch)
        if not same:  # of an earlier transaction, told twice
            return self._ledger.answer(written.transactional_id, None)
        if self._ledger.written(written.transactional_id, written.partitions):
            return self._ledger.answer(written.transactional_id, None)
        completed = transaction.completed(now_ms=now_ms)
        return self._ledger.decide(written.transactional_id, completed, (completed.record(),), None)

    def _ended(self, prepared: ProducerTransaction, now_ms: int, reply: Reply) -> CoordinatorOutcome[Reply]:
        ended = self._end(prepared, now_ms)
        return self._ledger.decide(
            prepared.transactional_id,
            ended.transaction,
            ended.entries,
            reply,
            outstanding=ended.outstanding,
            is_owed=ended.is_owed,
        )

    def _end(self, prepared: ProducerTransaction, now_ms: int) -> _Ended:
        """Write PREPARE and what markers can be written here; if those are all, it is complete, and COMPLETE owed."""
        return self._finish(prepared, prepared.partitions, now_ms, decision=(prepared.record(),))

    def _finish(
        self,
        prepared: ProducerTransaction,
        missing: frozenset[TopicPartition],
        now_ms: int,
        *,
        decision: tuple[StateRecord, ...] = (),
    ) -> _Ended:
        """Write what markers can be written here, behind the decision unless that is written already."""
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
        """Finish what is decided and not complete: after a start, and when other partitions are led here than before.

        Markers that are outstanding elsewhere are to be sent again; those of version 1, whose epoch is that of the
        producer's next transaction too, only if no broker can receive the former ones any more. Each outcome is to be
        written before the next one is asked for, as with any other.
        """
        self.begin_by(now_ms)  # another broker's clock may have been ahead
        for transactional_id in self._ledger.unfinished():
            held = self._ledger.get(transactional_id)
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
            return self._ledger.decide(
                transactional_id, ended.transaction, ended.entries, None, outstanding=ended.outstanding
            )
        self._ledger.withhold(held, ended.outstanding)
        return self._ledger.answer(transactional_id, None)

    def completions(self, owed: Iterable[Held]) -> Iterator[CoordinatorOutcome[None]]:
        """Write that transactions are complete which were `owed`, of those whose ids have not gone on since.

        Each outcome is to be written before the next one is asked for.
        """
        for held in owed:
            if self._ledger.get(held.transaction.transactional_id) is held:
                yield self._ledger.complete(held)

    def begin_by(self, now_ms: int) -> None:
        """Limit open transactions to their timeout from now on, in case a clock was ahead when they began."""
        self._ledger.begin_by(now_ms)

    def next_due_ms(self) -> int | None:
        """The time at which `due` has something to do; None: never, as things are."""
        return self._ledger.next_due_ms()

    def due(self, *, now_ms: int) -> Iterator[CoordinatorOutcome[None]]:
        """Abort transactions that have timed out, and forget ids that have expired; a bounded number at once.

        Each outcome is to be written before the next one is asked for.
        """
        for _ in range(DUE_MAX_COUNT):
            held = self._ledger.take_due(now_ms)
            if held is None:
                return
            transaction = held.transaction
            if transaction.state is TransactionState.ONGOING:
                yield self._ended(transaction.fenced(now_ms=now_ms), now_ms, None)
            else:
                tombstone = StateRecord(transaction.transactional_id, None)
                yield self._ledger.decide(transaction.transactional_id, None, (tombstone,), None)

    def _refusal(self, transactional_id: str) -> int:
        if self._resigned:
            return NOT_COORDINATOR
        return NONE if transactional_id else INVALID_REQUEST


# Were the reply ever sent, the client would ask again.
_NEEDS_PRODUCER_ID = CoordinatorOutcome(reply=ProducerReply(error_code=CONCURRENT_TRANSACTIONS), needs_producer_id=True)


def _who(transaction: ProducerTransaction) -> ProducerReply:
    return ProducerReply(producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch)


def _who_follows(prepared: ProducerTransaction) -> ProducerReply:
    """Return who the producer is when its transaction is complete."""
    producer_id, epoch = prepared.following_producer
    return ProducerReply(producer_id=producer_id, producer_epoch=epoch)
