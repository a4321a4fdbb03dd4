"""What a coordinator knows of its transactional ids, and how much of that is durable.

Decisions are numbered: a group of entries of the write-ahead log each, which become durable in order. What is decided
counts at once; the last decision can be taken back as long as none of its group is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import attrs

from kafscale.cluster.transactions.outcome import Former, Held, MarkersToSend, Outcome, Reply
from kafscale.cluster.transactions.settings import TransactionSettings
from kafscale.cluster.transactions.states import TransactionState
from kafscale.cluster.transactions.timers import Timers
from kafscale.cluster.transactions.transaction import Transaction
from kafscale.cluster.transactions.values import Marker, StateRecord, TopicPartition


@attrs.define(eq=False, repr=False)
class Places:
    """How many transactional ids there may be in all partitions together, and how many there are."""

    max_count: int
    count: int = 0

    @property
    def is_full(self) -> bool:
        return self.count >= self.max_count


@attrs.define(eq=False, repr=False)
class Ledger:
    """The transactional ids of one partition of `__transaction_state`."""

    settings: TransactionSettings
    places: Places
    _held: dict[str, Held] = attrs.field(factory=dict, init=False)
    _unfinished: dict[str, None] = attrs.field(factory=dict, init=False)  # the ids whose markers are outstanding
    _owed: dict[str, Held] = attrs.field(factory=dict, init=False)  # what is complete, and no record says so yet
    _timers: Timers = attrs.field(factory=Timers, init=False)
    _latest_start_ms: int = attrs.field(default=0, init=False)  # of what is, or was, ongoing
    _decided: int = attrs.field(default=0, init=False)
    _durable: int = attrs.field(default=0, init=False)
    _withheld: deque[MarkersToSend] = attrs.field(factory=deque, init=False)

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    def get(self, transactional_id: str) -> Held | None:
        return self._held.get(transactional_id)

    def unfinished(self) -> tuple[str, ...]:
        """Return the ids of which it is decided how their transaction ends, and which is not complete."""
        return tuple(self._unfinished)

    def owed(self) -> tuple[Held, ...]:
        """Return what is complete and in no record that says so."""
        return tuple(self._owed.values())

    @property
    def is_settled(self) -> bool:
        """Tell whether all that was decided is durable."""
        return self._decided == self._durable

    def is_durable(self, group: int) -> bool:
        return group <= self._durable

    def restore(self, transaction: Transaction) -> None:
        """Take over what the log says of an id.

        Of a transaction that is prepared nobody knows which markers were written: one that is there already is ignored
        by its epoch.
        """
        assert transaction.transactional_id not in self._held
        outstanding = transaction.partitions if transaction.state.is_prepared else frozenset()
        self._put(transaction.transactional_id, Held(transaction=transaction, outstanding=outstanding))

    def clear(self) -> None:
        """Forget everything, without writing anything."""
        self.places.count -= len(self._held)
        self._held.clear()
        self._unfinished.clear()
        self._owed.clear()
        self._withheld.clear()
        self._timers = Timers()

    def decide(
        self,
        transactional_id: str,
        transaction: Transaction | None,
        entries: tuple[StateRecord | Marker, ...],
        reply: Reply,
        *,
        outstanding: tuple[Marker, ...] = (),
        is_owed: bool = False,
    ) -> Outcome[Reply]:
        """Have the id be this from now on, once these entries are written; without a transaction it is forgotten.

        `is_owed` says that it is complete and that the entries do not tell.
        """
        assert entries
        former = Former(transactional_id=transactional_id, held=self._held.get(transactional_id))
        self._decided += 1
        held = None
        if transaction is not None:
            missing = frozenset(each.partition for each in outstanding)
            held = Held(transaction=transaction, group=self._decided, outstanding=missing, is_owed=is_owed)
            if outstanding:
                self.withhold(held, outstanding)
        self._put(transactional_id, held)
        return Outcome(reply=reply, entries=entries, group=self._decided, former=former)

    def complete(self, held: Held) -> Outcome[None]:
        """Have a record say that what is owed is complete; what is told of the id was true before it."""
        transaction = held.transaction
        former = Former(transactional_id=transaction.transactional_id, held=held)
        self._decided += 1
        self._put(transaction.transactional_id, attrs.evolve(held, is_owed=False))
        return Outcome(reply=None, entries=(transaction.record(),), group=self._decided, former=former)

    def answer(self, transactional_id: str, reply: Reply) -> Outcome[Reply]:
        """Reply without a decision; true as soon as the id's last one is durable, which may have been to forget it."""
        held = self._held.get(transactional_id)
        return Outcome(reply=reply, group=self._decided if held is None else held.group)

    def withhold(self, held: Held, markers: tuple[Marker, ...]) -> None:
        """Have other brokers write these as soon as the id's last decision is durable."""
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
        """Note that markers are durable there; return where they are outstanding."""
        held = self._held[transactional_id]
        outstanding = held.outstanding - partitions
        if outstanding:  # the last one is noted by the decision that it leads to
            self._held[transactional_id] = attrs.evolve(held, outstanding=outstanding)
        return outstanding

    def done(self, group: int) -> tuple[MarkersToSend, ...]:
        """Note that this group is durable, and all before it; return what need not be withheld any more."""
        self._durable = max(self._durable, group)
        released = []
        while self._withheld and self._withheld[0].group <= self._durable:
            released.append(self._withheld.popleft())
        return tuple(released)

    def undo(self, outcome: Outcome[Reply]) -> None:
        """Take back the last decision."""
        former = outcome.former
        if former is None:
            return
        assert outcome.group == self._decided > self._durable, "only what was decided last can be taken back"
        while self._withheld and self._withheld[-1].group == outcome.group:
            self._withheld.pop()
        self._decided -= 1
        self._put(former.transactional_id, former.held)

    def begin_by(self, now_ms: int) -> None:
        """Have what is ongoing have begun by now: what says a later time was begun by a clock that was ahead."""
        if self._latest_start_ms <= now_ms:
            return
        self._latest_start_ms = now_ms
        for transactional_id, held in list(self._held.items()):
            transaction = held.transaction
            if transaction.state is TransactionState.ONGOING and transaction.start_timestamp_ms > now_ms:
                begun = attrs.evolve(transaction, start_timestamp_ms=now_ms)
                self._put(transactional_id, attrs.evolve(held, transaction=begun))

    def next_due_ms(self) -> int | None:
        return self._timers.next_ms()

    def take_due(self, now_ms: int) -> Held | None:
        """Return an id that is due; a decision about it has to follow, which is when its timer is set again."""
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

    def _due_ms(self, transaction: Transaction) -> int | None:
        deadline_ms = transaction.deadline_ms
        if deadline_ms is not None:
            return deadline_ms + 1  # Kafka aborts what is past its deadline, and expires an id at its
        if transaction.state.may_expire:
            return transaction.last_update_timestamp_ms + self.settings.transactional_id_expiration_ms
        return None
