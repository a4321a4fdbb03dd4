"""The transactional ids of one coordinator, how much of them is durable, and their deadlines.

Decisions are numbered: each is a group of entries of the write-ahead log, and groups become durable in order. A
decision counts at once; the last one can be taken back as long as none of its group is written.

A deadline that is moved later, as most commits do to the expiration of their id, costs nothing until the former one is
reached. Memory is bounded by the number of ids, however often their deadlines change.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

import attrs

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.requests import CoordinatorOutcome, Former, Held, MarkersToSend, Reply
from kafscale.cluster.transactions.settings import TransactionSettings
from kafscale.cluster.transactions.transaction import ProducerTransaction
from kafscale.cluster.transactions.values import Marker, StateRecord, TransactionState


@attrs.frozen(order=True)
class _Alarm:
    """A time at which a key is looked at; it is not due then if its deadline was set later since."""

    time_ms: int
    key: str


@attrs.define(eq=False, repr=False)
class Timers:
    """The deadlines of some keys."""

    _deadlines: dict[str, int] = attrs.field(factory=dict, init=False)
    _alarms: dict[str, int] = attrs.field(factory=dict, init=False)  # the time of the one that counts; none is later
    _heap: list[_Alarm] = attrs.field(factory=list, init=False)

    def __len__(self) -> int:
        return len(self._deadlines)

    @property
    def alarm_count(self) -> int:
        """Return how many are kept, those included that do not count any more."""
        return len(self._heap)

    def set(self, key: str, deadline_ms: int | None) -> None:
        """Give the key this deadline instead of the one it has; None: it has none."""
        if deadline_ms is None:
            self._deadlines.pop(key, None)
            self._alarms.pop(key, None)
            return
        self._deadlines[key] = deadline_ms
        alarm_ms = self._alarms.get(key)
        if alarm_ms is None or deadline_ms < alarm_ms:
            self._push(key, deadline_ms)

    def next_ms(self) -> int | None:
        """Return the earliest deadline."""
        self._settle()
        return self._heap[0].time_ms if self._heap else None

    def take(self, until_ms: int) -> str | None:
        """Take the key with the earliest deadline, if that is not after `until_ms`; it has none from now on."""
        self._settle()
        if not self._heap or self._heap[0].time_ms > until_ms:
            return None
        key = heapq.heappop(self._heap).key
        del self._deadlines[key], self._alarms[key]
        return key

    def _push(self, key: str, time_ms: int) -> None:
        self._alarms[key] = time_ms
        heapq.heappush(self._heap, _Alarm(time_ms, key))
        if len(self._heap) > 2 * len(self._deadlines) + 64:  # most count no more
            self._heap = [_Alarm(time_ms, of) for of, time_ms in self._alarms.items()]
            heapq.heapify(self._heap)

    def _settle(self) -> None:
        """Drop alarms that do not count until the first one is the deadline of its key."""
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
    """The transactional ids of one partition of `__transaction_state`."""

    settings: TransactionSettings
    places: Places
    _held: dict[str, Held] = attrs.field(factory=dict, init=False)
    _unfinished: dict[str, None] = attrs.field(factory=dict, init=False)  # the ids whose markers are outstanding
    _owed: dict[str, Held] = attrs.field(factory=dict, init=False)  # what is complete, and no record says so yet
    _timers: Timers = attrs.field(factory=Timers, init=False)
    _latest_start_ms: int = attrs.field(default=0, init=False)  # of all transactions that are or were ongoing
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

    def restore(self, transaction: ProducerTransaction) -> None:
        """Take over what the log says of an id.

        All markers of a prepared transaction count as missing: a partition ignores one that it has, by its epoch.
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
        transaction: ProducerTransaction | None,
        entries: tuple[StateRecord | Marker, ...],
        reply: Reply,
        *,
        outstanding: tuple[Marker, ...] = (),
        is_owed: bool = False,
    ) -> CoordinatorOutcome[Reply]:
        """Set the state of an id, whose entries are to be written; without a transaction the id is forgotten.

        `is_owed` says that it is complete and that the entries do not tell.
        """
        assert entries
        former = Former(transactional_id=transactional_id, held=self._held.get(transactional_id))
        self._decided += 1
        held = None
        if transaction is not None:
            missing = frozenset(marker.partition for marker in outstanding)
            held = Held(transaction=transaction, group=self._decided, outstanding=missing, is_owed=is_owed)
            if outstanding:
                self.withhold(held, outstanding)
        self._put(transactional_id, held)
        return CoordinatorOutcome(reply=reply, entries=entries, group=self._decided, former=former)

    def complete(self, held: Held) -> CoordinatorOutcome[None]:
        """Write that an owed transaction is complete, which requests have been told before."""
        transaction = held.transaction
        former = Former(transactional_id=transaction.transactional_id, held=held)
        self._decided += 1
        self._put(transaction.transactional_id, attrs.evolve(held, is_owed=False))
        return CoordinatorOutcome(reply=None, entries=(transaction.record(),), group=self._decided, former=former)

    def answer(self, transactional_id: str, reply: Reply) -> CoordinatorOutcome[Reply]:
        """Reply without a decision; true as soon as the id's last one is durable, which may have been to forget it."""
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

    def undo(self, outcome: CoordinatorOutcome[Reply]) -> None:
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
        """Set later starts of ongoing transactions to now: a clock that was ahead has begun them."""
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

    def _due_ms(self, transaction: ProducerTransaction) -> int | None:
        deadline_ms = transaction.deadline_ms
        if deadline_ms is not None:
            return deadline_ms + 1  # Kafka aborts what is past its deadline, and expires an id at its
        if transaction.state.may_expire:
            return transaction.last_update_timestamp_ms + self.settings.transactional_id_expiration_ms
        return None
