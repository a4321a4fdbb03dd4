"""The transactional ids of one coordinator with their decisions and deadlines.

    outcome = coordinator.end_transaction(identity, …, now_ms=…)
    if outcome.needs_producer_id:              nothing is decided: allocate an id, and ask again with it
    journal.append(outcome.entries)            as one group, in order, without an await since the call
    …durable…                                  at once if `coordinator.is_durable(outcome)`
    for sending in coordinator.done(outcome):  markers for other brokers, whose decision is now durable
    …outcome.reply…

Groups of entries become durable in order. A batch that enrols its partition goes behind the entries, into the same
group. If the journal refuses it, `undo` takes the decision back, without an await in between. An outcome without
entries may depend on an earlier decision. `done` must be called for every written outcome, even without a client.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import attrs

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.transaction import ProducerTransaction
from kafscale.cluster.transactions.values import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Marker,
    StateRecord,
    TransactionState,
)
from kafscale.config import Settings
from kafscale.wire.error_codes import NONE, TRANSACTION_ABORTABLE

Reply = TypeVar("Reply")


@attrs.frozen(kw_only=True)
class ProducerReply:
    """The answer to InitProducerId and EndTxn, with the producer's new id and epoch. EndTxn 1 changes neither."""

    error_code: int = NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@attrs.frozen(kw_only=True)
class PartitionsReply:
    """The answer to adding or verifying partitions: one error for all, or the partitions that are not enrolled."""

    error_code: int = NONE
    not_enrolled: frozenset[TopicPartition] = frozenset()  # when verifying

    def error_of(self, partition: TopicPartition) -> int:
        if self.error_code != NONE:
            return self.error_code
        return TRANSACTION_ABORTABLE if partition in self.not_enrolled else NONE


@attrs.frozen(kw_only=True)
class MarkersToSend:
    """Markers of one transaction for partitions of other brokers, sent by WriteTxnMarkers until all are written."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    markers: tuple[Marker, ...]
    group: int  # the decision that must be durable first


@attrs.frozen(kw_only=True)
class Held:
    transaction: ProducerTransaction
    group: int = 0  # of the last decision about it; 0: from the log
    outstanding: frozenset[TopicPartition] = frozenset()  # without a written marker
    is_owed: bool = False  # complete, but no record says so yet


@attrs.frozen(kw_only=True)
class CoordinatorOutcome(Generic[Reply]):
    """The decision of a coordinator on one request."""

    reply: Reply
    entries: tuple[StateRecord | Marker, ...] = ()
    group: int = 0  # the reply waits until this group is durable
    needs_producer_id: bool = False  # nothing was decided: ask again with a new id
    former: tuple[str, Held | None] | None = None  # the id and its state before, if the decision can be taken back


@attrs.frozen(kw_only=True)
class InitProducerId:
    """An InitProducerId request with a transactional id."""

    transactional_id: str
    transaction_timeout_ms: int
    producer_id: int = NO_PRODUCER_ID  # with its epoch, of a producer that wants to go on (KIP-360)
    producer_epoch: int = NO_PRODUCER_EPOCH


@attrs.frozen
class ProducerIdentity:
    """The identity of a producer in its requests after InitProducerId."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@attrs.frozen(order=True)
class _Alarm:
    """A time to look at a key. It is not due then if its deadline has been moved later."""

    time_ms: int
    key: str


@attrs.define(eq=False, repr=False)
class Timers:
    _deadlines: dict[str, int] = attrs.field(factory=dict, init=False)
    _alarms: dict[str, int] = attrs.field(factory=dict, init=False)  # time of the valid alarm, at most the deadline
    _heap: list[_Alarm] = attrs.field(factory=list, init=False)

    def __len__(self) -> int:
        return len(self._deadlines)

    @property
    def alarm_count(self) -> int:
        return len(self._heap)

    def set(self, key: str, deadline_ms: int | None) -> None:
        """Set or, with None, remove the deadline of a key."""
        if deadline_ms is None:
            self._deadlines.pop(key, None)
            self._alarms.pop(key, None)
            return
        self._deadlines[key] = deadline_ms
        alarm_ms = self._alarms.get(key)
        if alarm_ms is None or deadline_ms < alarm_ms:
            self._push(key, deadline_ms)

    def next_ms(self) -> int | None:
        self._settle()
        return self._heap[0].time_ms if self._heap else None

    def take(self, until_ms: int) -> str | None:
        """Remove and return the key with the earliest deadline, if that is at most `until_ms`."""
        self._settle()
        if not self._heap or self._heap[0].time_ms > until_ms:
            return None
        key = heapq.heappop(self._heap).key
        del self._deadlines[key], self._alarms[key]
        return key

    def _push(self, key: str, time_ms: int) -> None:
        self._alarms[key] = time_ms
        heapq.heappush(self._heap, _Alarm(time_ms, key))
        if len(self._heap) > 2 * len(self._deadlines) + 64:  # most are invalid
            self._heap = [_Alarm(time_ms, of) for of, time_ms in self._alarms.items()]
            heapq.heapify(self._heap)

    def _settle(self) -> None:
        """Drop alarms until the first one is the deadline of its key."""
        while self._heap:
            first = self._heap[0]
            if self._alarms.get(first.key) != first.time_ms:
                heapq.heappop(self._heap)
            elif self._deadlines[first.key] != first.time_ms:
                heapq.heappop(self._heap)
                self._push(first.key, self._deadlines[first.key])
            else:
                return


@attrs.define(eq=False, repr=False)
class Places:
    """The number of transactional ids in all partitions together, and its limit."""

    max_count: int
    count: int = 0

    @property
    def is_full(self) -> bool:
        return self.count >= self.max_count


@attrs.define(eq=False, repr=False)
class Ledger:
    """The transactional ids of one partition of `__transaction_state`, until this broker resigns."""

    settings: Settings
    places: Places
    _held: dict[str, Held] = attrs.field(factory=dict, init=False)
    _unfinished: dict[str, None] = attrs.field(factory=dict, init=False)  # ids with outstanding markers
    _owed: dict[str, Held] = attrs.field(factory=dict, init=False)  # complete ids without a record that says so
    _timers: Timers = attrs.field(factory=Timers, init=False)
    _latest_start_ms: int = attrs.field(default=0, init=False)  # of all transactions that are or were ongoing
    _decided: int = attrs.field(default=0, init=False)
    _durable: int = attrs.field(default=0, init=False)
    _withheld: deque[MarkersToSend] = attrs.field(factory=deque, init=False)
    is_resigned: bool = attrs.field(default=False, init=False)

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    def get(self, transactional_id: str) -> Held | None:
        return self._held.get(transactional_id)

    def unfinished(self) -> tuple[str, ...]:
        """Return the ids whose transaction is prepared but not complete."""
        return tuple(self._unfinished)

    def owed(self) -> tuple[Held, ...]:
        """Return complete transactions without a record that says so."""
        return tuple(self._owed.values())

    @property
    def is_settled(self) -> bool:
        return self._decided == self._durable

    def is_durable(self, outcome: CoordinatorOutcome[Reply]) -> bool:
        """Tell whether the reply may be sent already."""
        return outcome.group <= self._durable

    def restore(self, transactions: Iterable[ProducerTransaction]) -> None:
        """Add transactions from the log, also beyond the limit of ids, so that they end.

        All markers of a prepared transaction count as missing: a partition ignores a repeated marker by its epoch.
        """
        for transaction in transactions:
            assert transaction.transactional_id not in self._held
            outstanding = transaction.partitions if transaction.state.is_prepared else frozenset()
            self._put(transaction.transactional_id, Held(transaction=transaction, outstanding=outstanding))

    def resign(self) -> None:
        """Forget everything: another broker leads the partition, or decisions can't be written."""
        if self.is_resigned:
            return
        self.is_resigned = True
        self.places.count -= len(self._held)
        self._held.clear()
        self._unfinished.clear()
        self._owed.clear()
        self._withheld.clear()
        self._timers = Timers()

    def decide(
        self,
        transactional_id: str,
        transaction: ProducerTransaction | None,
        entries: tuple[StateRecord | Marker, ...],
        reply: Reply,
        *,
        outstanding: tuple[Marker, ...] = (),
        is_owed: bool = False,
    ) -> CoordinatorOutcome[Reply]:
        """Set the state of an id, and return the entries to write. Without a transaction the id is forgotten.

        With `is_owed` the transaction is complete, and the entries do not say so.
        """
        assert entries
        former = transactional_id, self._held.get(transactional_id)
        self._decided += 1
        held = None
        if transaction is not None:
            missing = frozenset(marker.partition for marker in outstanding)
            held = Held(transaction=transaction, group=self._decided, outstanding=missing, is_owed=is_owed)
            if outstanding:
                self.withhold(held, outstanding)
        self._put(transactional_id, held)
        return CoordinatorOutcome(reply=reply, entries=entries, group=self._decided, former=former)

    def completions(self, owed: Iterable[Held]) -> Iterator[CoordinatorOutcome[None]]:
        """Write that unchanged owed transactions are complete. Write each outcome before the next one."""
        for held in owed:
            transaction = held.transaction
            if self._held.get(transaction.transactional_id) is held:
                self._decided += 1
                self._put(transaction.transactional_id, attrs.evolve(held, is_owed=False))
                former = transaction.transactional_id, held
                yield CoordinatorOutcome(
                    reply=None, entries=(transaction.record(),), group=self._decided, former=former
                )

    def answer(self, transactional_id: str, reply: Reply) -> CoordinatorOutcome[Reply]:
        """Reply without a decision. The reply waits for the id's last decision, which may have been to forget it."""
        held = self._held.get(transactional_id)
        return CoordinatorOutcome(reply=reply, group=self._decided if held is None else held.group)

    def withhold(self, held: Held, markers: tuple[Marker, ...]) -> None:
        """Keep markers for other brokers until the id's last decision is durable."""
        self._withheld.append(
            MarkersToSend(
                transactional_id=held.transaction.transactional_id,
                producer_id=held.transaction.producer_id,
                producer_epoch=held.transaction.producer_epoch,
                markers=markers,
                group=held.group,
            )
        )

    def written(self, transactional_id: str, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Note the partitions in which markers are durable; return those that still lack one."""
        held = self._held[transactional_id]
        outstanding = held.outstanding - partitions
        if outstanding:  # the decision to complete the transaction notes the last ones
            self._held[transactional_id] = attrs.evolve(held, outstanding=outstanding)
        return outstanding

    def done(self, outcome: CoordinatorOutcome[Reply]) -> tuple[MarkersToSend, ...]:
        """Note that a decision and all before it are durable; return the markers that other brokers must write now."""
        self._durable = max(self._durable, outcome.group)
        released = []
        while self._withheld and self._withheld[0].group <= self._durable:
            released.append(self._withheld.popleft())
        return tuple(released)

    def undo(self, outcome: CoordinatorOutcome[Reply]) -> None:
        """Take back the last decision: nothing of its group was, or will be, written."""
        if outcome.former is None or self.is_resigned:
            return
        assert outcome.group == self._decided > self._durable, "only the last decision can be undone"
        while self._withheld and self._withheld[-1].group == outcome.group:
            self._withheld.pop()
        self._decided -= 1
        self._put(*outcome.former)

    def begin_by(self, now_ms: int) -> None:
        """Set later starts of ongoing transactions to now: the clock that began them was ahead."""
        if self._latest_start_ms <= now_ms:
            return
        self._latest_start_ms = now_ms
        for transactional_id, held in list(self._held.items()):
            transaction = held.transaction
            if transaction.state is TransactionState.ONGOING and transaction.start_timestamp_ms > now_ms:
                begun = attrs.evolve(transaction, start_timestamp_ms=now_ms)
                self._put(transactional_id, attrs.evolve(held, transaction=begun))

    def next_due_ms(self) -> int | None:
        """Return the time of the next timeout or expiration, if there is one."""
        return self._timers.next_ms()

    def take_due(self, now_ms: int) -> Held | None:
        """Return an id that is due. The caller must decide about it, which sets its timer again."""
        transactional_id = self._timers.take(now_ms)
        return None if transactional_id is None else self._held[transactional_id]

    def _put(self, transactional_id: str, held: Held | None) -> None:
        self.places.count += (held is not None) - (transactional_id in self._held)
        self._owed.pop(transactional_id, None)
        if held is None:
            self._held.pop(transactional_id, None)
            self._unfinished.pop(transactional_id, None)
            self._timers.set(transactional_id, None)
            return
        self._held[transactional_id] = held
        state = held.transaction.state
        if state.is_prepared or state is TransactionState.PREPARE_EPOCH_FENCE:
            self._unfinished[transactional_id] = None
        else:
            self._unfinished.pop(transactional_id, None)
            if held.is_owed:
                self._owed[transactional_id] = held
        if state is TransactionState.ONGOING:
            self._latest_start_ms = max(self._latest_start_ms, held.transaction.start_timestamp_ms)
        self._timers.set(transactional_id, self._due_ms(held.transaction))

    def _due_ms(self, transaction: ProducerTransaction) -> int | None:
        deadline_ms = transaction.deadline_ms
        if deadline_ms is not None:
            return deadline_ms + 1  # Kafka aborts a transaction after its deadline, and expires an id at its deadline
        if transaction.state.may_expire:
            return transaction.last_update_timestamp_ms + self.settings.transactional_id_expiration_ms
        return None
