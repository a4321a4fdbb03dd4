"""The coordinator among crashes, zombies, repeated requests and timeouts, with both versions of the protocol mixed.

Hypothesis chooses what happens; `World` holds every moment against the rules of the design: data is durable only with
its enrolment, decisions come before markers, markers are idempotent by their epochs, the last stable offset never goes
back, any prefix of the log is a state that a restored coordinator finishes, and all partitions of a transaction end in
the one way that its producer was told.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial

import attrs
import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.ledger import (
    CoordinatorOutcome,
    Held,
    InitProducerId,
    PartitionsReply,
    ProducerIdentity,
    ProducerReply,
)
from kafscale.cluster.transactions.transaction import ProducerTransaction
from kafscale.cluster.transactions.values import TransactionState
from kafscale.config import Limits, Settings
from kafscale.wire.error_codes import CONCURRENT_TRANSACTIONS, NONE, POLICY_VIOLATION
from tests.cluster.transactions.transaction_world import Claims, Data, World

PARTITIONS = tuple(TopicPartition(topic, index) for topic in ("a", "b") for index in range(2))
SETTINGS = Settings(
    transaction_max_timeout_ms=60_000,
    transactional_id_expiration_ms=100_000,
    limits=Limits(max_transactional_ids_count=4, max_transaction_partitions_count=3),
)
IDS = ("orders", "payments", "worn out")
TIMEOUT_MS = 30_000


class Pace(Enum):
    """Who keeps up with the requests."""

    ALL = "all"
    LOG = "log"
    NOBODY = "nobody"


instances = st.integers(0, 5)
partitions = st.sampled_from(PARTITIONS)
paces = st.sampled_from(Pace)


@attrs.frozen(eq=False)
class Ending:
    """An EndTxn request."""

    committed: bool
    transaction_version: int


@attrs.define(eq=False)
class Producer:
    """One instance of an application; a later one with the same transactional id supersedes it."""

    transactional_id: str
    version: int
    producer_id: int = -1
    epoch: int = -1
    token: int | None = None
    ending: Ending | None = None  # sent, and not answered yet
    is_initialising: bool = False
    is_superseded: bool = False
    is_dead: bool = False  # was told that it can't go on
    enrolled: set[TopicPartition] = attrs.field(factory=set)  # as version 1 was told
    in_flight: list[Data] = attrs.field(factory=list)  # on the way to other brokers

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.transactional_id, self.producer_id, self.epoch)

    @property
    def may_send(self) -> bool:
        return self.producer_id >= 0 and self.ending is None and not self.is_initialising


@attrs.frozen(eq=False)
class Waiting:
    """A reply that waits for its group to be durable."""

    outcome: CoordinatorOutcome[ProducerReply] | CoordinatorOutcome[PartitionsReply]
    deliver: Callable[[], None]


class Coordination(RuleBasedStateMachine):
    """What may happen."""

    def __init__(self) -> None:
        super().__init__()
        self.next_producer_id = 100
        self.next_token = 0
        self.producers: list[Producer] = []
        self.waiting: list[Waiting] = []
        self.given: dict[tuple[int, int], Producer] = {}
        self.refuses_next = False
        self.syncs_at_once = True
        self.delivers_at_once = True

    @initialize(elsewhere=st.sets(partitions, max_size=3))
    def begin(self, elsewhere: set[TopicPartition]) -> None:
        worn = ProducerTransaction(
            transactional_id="worn out",
            producer_id=7,
            producer_epoch=32_763,
            timeout_ms=TIMEOUT_MS,
            state=TransactionState.EMPTY,
            last_update_timestamp_ms=1_000_000,
        )
        self.world = World(PARTITIONS, settings=SETTINGS, journal=[worn.record()], durable_count=1)
        self.world.elsewhere.update({each: [] for each in elsewhere})
        for version, transactional_id in enumerate(IDS, start=0):
            self.start_producer(transactional_id, 1 + version % 2)

    # -- Requests ----------------------------------------------------------------------------------------------------

    def submit(
        self,
        producer: Producer,
        outcome: CoordinatorOutcome[ProducerReply] | CoordinatorOutcome[PartitionsReply],
        deliver: Callable[[], None],
        *behind: Data,
    ) -> None:
        """Hand what was decided to the log, or have the log refuse it."""
        code = outcome.reply.error_code
        held = self.world.coordinator.get(producer.transactional_id)
        if code == CONCURRENT_TRANSACTIONS:
            assert held is not None
            assert held.outstanding, "nothing is outstanding"
        if self.refuses_next and outcome.entries:
            self.refuses_next = False
            self.world.coordinator.undo(outcome)
            assert self.snapshot() == self.before, "the decision was not taken back"
            return
        assert producer.is_superseded is False or code != NONE or self.was_unknown, "a zombie was served"
        self.world.write(outcome, *behind)
        self.waiting.append(Waiting(outcome, deliver))
        if self.syncs_at_once:
            self.world.sync()
        while self.delivers_at_once and self.world.sending:
            self.world.deliver(self.world.sending.pop(0))
        self.deliver_replies()

    def ask(self, transactional_id: str) -> None:
        """Remember what there is before a request."""
        self.before = self.snapshot()
        self.was_unknown = self.world.coordinator.get(transactional_id) is None

    def snapshot(self) -> tuple[tuple[Held, ...], int | None, int]:
        coordinator = self.world.coordinator
        held = sorted(coordinator, key=lambda each: each.transaction.transactional_id)
        return tuple(held), coordinator.next_due_ms(), self.world.places.count

    def deliver_replies(self) -> None:
        while self.waiting and self.world.coordinator.is_durable(self.waiting[0].outcome):
            self.waiting.pop(0).deliver()

    def producer(self, index: int) -> Producer | None:
        return self.producers[index % len(self.producers)] if self.producers else None

    def new_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id

    @rule(transactional_id=st.sampled_from(IDS), version=st.sampled_from((1, 2)))
    def start_producer(self, transactional_id: str, version: int) -> None:
        producer = Producer(transactional_id, version)
        self.producers = [*self.producers, producer][-6:]
        self.init(producer, InitProducerId(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS))

    @rule(index=instances)
    def bump_epoch(self, index: int) -> None:
        """KIP-360: a producer that wants to go on after an error."""
        producer = self.producer(index)
        if producer is None or producer.producer_id < 0 or producer.ending is not None:
            return
        request = InitProducerId(
            transactional_id=producer.transactional_id,
            transaction_timeout_ms=TIMEOUT_MS,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
        )
        producer.in_flight.clear()
        self.init(producer, request)

    @rule(index=instances)
    def repeat_init(self, index: int) -> None:
        producer = self.producer(index)
        if producer is not None and producer.producer_id < 0:
            name = producer.transactional_id
            self.init(producer, InitProducerId(transactional_id=name, transaction_timeout_ms=TIMEOUT_MS))

    def init(self, producer: Producer, request: InitProducerId) -> None:
        coordinator, now_ms = self.world.coordinator, self.world.now_ms
        producer.is_initialising = True
        self.ask(producer.transactional_id)
        outcome = coordinator.init_producer_id(request, now_ms=now_ms)
        if outcome.needs_producer_id:
            assert self.snapshot() == self.before
            outcome = coordinator.init_producer_id(request, new_producer_id=self.new_producer_id(), now_ms=now_ms)
        self.submit(producer, outcome, lambda: self.initialised(producer, outcome.reply))

    def initialised(self, producer: Producer, reply: ProducerReply) -> None:
        producer.is_initialising = False
        if reply.error_code == NONE:
            producer.token, producer.is_dead, producer.is_superseded = None, False, False
            producer.enrolled.clear()
            self.give(producer, reply)
            for each in self.producers:
                same = each.transactional_id == producer.transactional_id
                each.is_superseded = each.is_superseded or (same and each is not producer and each.producer_id >= 0)
        elif reply.error_code not in (CONCURRENT_TRANSACTIONS, POLICY_VIOLATION):
            producer.is_dead = True

    def give(self, producer: Producer, reply: ProducerReply) -> None:
        assert reply.producer_epoch <= 32_766
        key = (reply.producer_id, reply.producer_epoch)
        assert self.given.setdefault(key, producer) is producer, f"two producers are {key}"
        producer.producer_id, producer.epoch = key

    @rule(index=instances, partition=partitions)
    def enrol(self, index: int, partition: TopicPartition) -> None:
        """AddPartitionsToTxn of version 1, or a Produce of version 2."""
        producer = self.producer(index)
        if producer is None or not producer.may_send:
            return
        if producer.token is None:
            producer.token = self.next_token
            self.world.claims[self.next_token] = Claims()
            self.next_token += 1
        self.ask(producer.transactional_id)
        outcome = self.world.coordinator.add_partitions(
            producer.identity,
            frozenset({partition}),
            transaction_version=0 if producer.version == 1 else 2,
            now_ms=self.world.now_ms,
        )
        data = Data(partition, producer.producer_id, producer.epoch, producer.token)
        goes_behind = producer.version == 2 and partition not in self.world.elsewhere
        behind = [data] if goes_behind and outcome.reply.error_code == NONE else []

        def enrolled() -> None:
            if outcome.reply.error_code != NONE or (producer.token, producer.epoch) != (
                data.token,
                data.producer_epoch,
            ):
                return
            if producer.version == 1:
                producer.enrolled.add(partition)
            elif not goes_behind and producer.ending is None:
                producer.in_flight.append(data)

        self.submit(producer, outcome, enrolled, *behind)

    @rule(index=instances, partition=partitions)
    def produce_verified(self, index: int, partition: TopicPartition) -> None:
        """A Produce of version 1, whose leader asks the coordinator first."""
        producer = self.producer(index)
        if producer is None or not producer.may_send or partition not in producer.enrolled or producer.token is None:
            return
        outcome = self.world.coordinator.verify_partitions(producer.identity, frozenset({partition}))
        data = Data(partition, producer.producer_id, producer.epoch, producer.token)
        if outcome.reply.error_of(partition) != NONE or not self.world.model(partition).accepts(data):
            return
        assert not producer.is_superseded, "a zombie was served"
        if partition not in self.world.elsewhere:
            self.world.write(outcome, data)
        elif self.world.coordinator.is_durable(outcome):
            self.world.elsewhere[partition].append(data)

    @rule(
        index=instances,
        several=st.lists(partitions, min_size=1, max_size=3),
        committed=st.none() | st.booleans(),
        pace=paces,
    )
    def transact(self, index: int, several: list[TopicPartition], committed: bool | None, pace: Pace) -> None:
        """A transaction as most are; what is left of it is for other rules."""
        self.change_pace(pace)
        for partition in several:
            self.enrol(index, partition)
        for partition in several:
            self.arrive(index)
            self.produce_verified(index, partition)
        if committed is not None:
            self.end(index, committed)

    @rule(index=instances)
    def arrive(self, index: int) -> None:
        """A batch gets to another broker, be it late."""
        producer = self.producer(index)
        if producer is None or not producer.in_flight:
            return
        data = producer.in_flight.pop(0)
        log = self.world.elsewhere.get(data.partition)
        if log is not None and self.world.model(data.partition).accepts(data):
            log.append(data)

    @rule(index=instances, committed=st.booleans())
    def end(self, index: int, committed: bool) -> None:
        producer = self.producer(index)
        if producer is None or not producer.may_send or (producer.token is None and producer.version == 1):
            return
        if committed and (producer.in_flight or producer.token is None):
            return  # a client commits what has arrived
        producer.ending = Ending(committed, transaction_version=0 if producer.version == 1 else 2)
        self.send_end(producer)

    @rule(index=instances)
    def repeat_end(self, index: int) -> None:
        producer = self.producer(index)
        if producer is not None and producer.ending is not None:
            self.send_end(producer)

    def send_end(self, producer: Producer) -> None:
        request = producer.ending
        assert request is not None
        if request.committed and producer.token is not None:
            self.world.claims[producer.token].asked_commit = True
        self.ask(producer.transactional_id)
        end = partial(
            self.world.coordinator.end_transaction,
            producer.identity,
            committed=request.committed,
            transaction_version=request.transaction_version,
            now_ms=self.world.now_ms,
        )
        outcome = end()
        if outcome.needs_producer_id:
            outcome = end(new_producer_id=self.new_producer_id())
        self.submit(producer, outcome, lambda: self.ended(producer, request, outcome.reply))

    def ended(self, producer: Producer, request: Ending, reply: ProducerReply) -> None:
        if producer.ending is not request or reply.error_code == CONCURRENT_TRANSACTIONS:
            return
        producer.ending = None
        if reply.error_code != NONE:
            producer.is_dead = True
            return
        if producer.token is not None:
            self.world.claims[producer.token].told_committed = request.committed
        producer.token = None
        producer.enrolled.clear()
        producer.in_flight.clear() if request.committed else None
        if producer.version == 2:
            self.give(producer, reply)

    @rule()
    def complete(self) -> None:
        self.world.complete()

    # -- The world ---------------------------------------------------------------------------------------------------

    @rule(pace=paces)
    def change_pace(self, pace: Pace) -> None:
        """The log and the other brokers are as fast as requests come, or slower."""
        self.syncs_at_once, self.delivers_at_once = pace is not Pace.NOBODY, pace is Pace.ALL

    @rule(count=st.one_of(st.none(), st.integers(1, 5)))
    def sync(self, count: int | None) -> None:
        self.world.sync(count)
        self.deliver_replies()

    @rule(kept_count=st.integers(0, 6))
    def crash(self, kept_count: int) -> None:
        self.waiting.clear()
        for producer in self.producers:
            producer.is_initialising = False
        self.world.check_every_crash()
        self.world.crash(kept_count)

    @rule()
    def refuse_next(self) -> None:
        self.refuses_next = True

    @rule(elapsed_ms=st.sampled_from((1, 10_000, TIMEOUT_MS, 40_000)))
    def pass_time(self, elapsed_ms: int) -> None:
        self.world.now_ms += elapsed_ms
        self.world.run_due()

    @rule(index=st.integers(0, 5), keep=st.booleans(), lost=st.none() | st.integers(0, 3))
    def deliver_markers(self, index: int, keep: bool, lost: int | None) -> None:
        """Markers of a request arrive, all or all but one; what is not told to be written is sent again."""
        if not self.world.sending:
            return
        sending = self.world.sending.pop(index % len(self.world.sending))
        missing = None if lost is None else sending.markers[lost % len(sending.markers)]
        self.world.deliver(sending, lambda marker: marker is not missing)
        if keep and all(marker.transaction_version >= 2 for marker in sending.markers):
            self.world.sending.append(sending)  # it arrives twice

    @rule()
    def lose_markers(self) -> None:
        """Requests get lost with their connections, and everything that is outstanding is sent again."""
        self.world.sending.clear()
        self.world.resume()

    @rule(partition=partitions)
    def move(self, partition: TopicPartition) -> None:
        self.sync(None)
        self.world.move(partition)

    @invariant()
    def every_moment_is_sound(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for producer in self.producers:
            for data in producer.in_flight:
                log = self.world.elsewhere.get(data.partition)
                if log is not None and self.world.model(data.partition).accepts(data):
                    log.append(data)
        self.world.settle()
        self.deliver_replies()
        self.world.check()
        self.world.check_outcomes()


TestCoordination = Coordination.TestCase
TestCoordination.settings = hypothesis.settings(max_examples=100, stateful_step_count=50, deadline=None)
