"""Runs the transaction coordinators of the partitions of `__transaction_state` that this broker leads.

A decision goes into the log as one group, in the same synchronous step, and the reply is sent when the group is
durable. So decisions are in the log in their order, even if a request is cancelled: `run` finishes them. Under
`segment` the decision becomes durable first, then the markers, then COMPLETE, and the reply waits for all of them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import attrs
import trio

from kafscale.cluster.coordinator.entries import Appended, EndEntry, Entry, InternalLog, RecordsEntry
from kafscale.cluster.coordinator.partitions import LedPartitions, TopicPartition
from kafscale.cluster.transactions.coordinator import TransactionCoordinator
from kafscale.cluster.transactions.hanging import Knowledge, Suspect
from kafscale.cluster.transactions.ledger import (
    CoordinatorOutcome,
    InitProducerId,
    MarkersToSend,
    PartitionsReply,
    Places,
    ProducerIdentity,
    ProducerReply,
)
from kafscale.cluster.transactions.marker_sender import MarkerSender
from kafscale.cluster.transactions.remote_coordinators import RemoteCoordinators, no_peers
from kafscale.cluster.transactions.transaction import EPOCH_BUMP_VERSION
from kafscale.cluster.transactions.values import (
    Marker,
    StateRecord,
    TransactionState,
    encode_state,
    end_marker,
    now_ms,
)
from kafscale.concurrency.signals import Signal
from kafscale.config import Settings
from kafscale.errors import DamagedObject, Fenced, KafkaError, StorageFailed, StoreError
from kafscale.metrics import Counter, Metrics
from kafscale.wire.error_codes import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_NOT_AVAILABLE,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    NONE,
    NOT_COORDINATOR,
    NOT_ENOUGH_REPLICAS,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
    TRANSACTION_COORDINATOR_FENCED,
)

logger = logging.getLogger(__name__)

COMPLETION_SECONDS = 10.0  # maximum wait of a reply for markers that are written after the decision
DECISIONS_PER_TURN = 64
# Delay of COMPLETE: if the producer goes on by then, its next record says the same. Without it a crash only repeats the
# markers. Kafka Streams' commit.interval.ms is 100 with exactly_once_v2.
OWED_SECONDS = 0.1
# Errors that end a producer or its transaction.
FATAL_TO_PRODUCERS = frozenset({INVALID_PRODUCER_ID_MAPPING, INVALID_TXN_STATE, PRODUCER_FENCED, TRANSACTION_ABORTABLE})
R = TypeVar("R")
Answer = TypeVar("Answer", bound=ProducerReply | PartitionsReply)
Ask = Callable[
    [TransactionCoordinator, int, "int | None"], CoordinatorOutcome[R]
]  # the coordinator, now in ms, a new producer id


@attrs.frozen(eq=False, repr=False)
class _Written:
    coordinator: TransactionCoordinator
    outcome: CoordinatorOutcome[Any]
    appended: Appended


@attrs.define(eq=False, kw_only=True, repr=False)
class TransactionService:
    """All transactional ids that this broker coordinates: a `Keeper` of `topic`, `__transaction_state`.

    `partition_count` returns 0 while the topic does not exist. `exists` tells whether the cluster has a partition.
    `check_lead` raises Fenced if another broker has taken over.
    """

    internal: InternalLog
    settings: Settings
    topic: str
    partition_count: Callable[[], int]
    exists: Callable[[TopicPartition], bool]
    allocate_producer_id: Callable[[], Awaitable[int]]
    check_lead: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    remote: RemoteCoordinators = attrs.field(factory=no_peers)
    led: LedPartitions[TransactionCoordinator] = attrs.field(init=False)
    places: Places = attrs.field(init=False)
    ended: dict[str, Counter] = attrs.field(init=False)
    hanging: Counter = attrs.field(factory=Counter, init=False)  # transactions without a coordinator that were aborted
    _sender: MarkerSender = attrs.field(init=False)
    _written: deque[_Written] = attrs.field(factory=deque, init=False)
    _latest: dict[TransactionCoordinator, Appended] = attrs.field(factory=dict, init=False)
    _work: Signal = attrs.field(factory=Signal, init=False)
    _owing: Signal = attrs.field(factory=Signal, init=False)  # COMPLETE records may be owed
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.places = Places(self.settings.limits.max_transactional_ids_count)
        self.led = LedPartitions(
            topic=self.topic,
            known_count=self.partition_count,
            new_state=self._new_coordinator,
            on_loaded=self._loaded,
            on_resigned=self._resigned,
        )
        self._sender = MarkerSender(
            internal=self.internal,
            exists=self.exists,
            report=self.report,
            resign=self._resign,
            remote=self.remote,
        )
        self.ended = {"commit": Counter(), "abort": Counter()}

    def register(self, metrics: Metrics) -> None:
        metrics.gauge("kafscale_transactional_ids", "Transactional ids coordinated here.", lambda: self.places.count)
        help = "Transactions decided by this broker, by outcome."
        name = "kafscale_transactions_total"
        metrics.counts(name, help, "outcome", lambda: {outcome: count.value for outcome, count in self.ended.items()})
        metrics.count(
            "kafscale_hanging_transactions_total",
            "Aborted transactions that were open in a partition but unknown to every coordinator.",
            lambda: self.hanging.value,
        )

    # ---- requests ---------------------------------------------------------------------------------------------

    async def decide(self, transactional_id: str, ask: Ask[Answer], *, until_complete: bool = False) -> Answer:
        """Ask the coordinator of an id, and return its reply when it is durable. `ask` may be called several times.

        With `until_complete` wait, for a bounded time, until no markers are outstanding. Raises KafkaError:
        NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, and as `allocate_producer_id`.
        """
        coordinator, outcome = await self._decide(transactional_id, ask)
        if self._may_be_outdated(outcome):
            await self.confirm_lead()
        elif until_complete:
            await self._wait_complete(coordinator, transactional_id)
        return outcome.reply

    async def _decide(
        self, transactional_id: str, ask: Ask[Answer]
    ) -> tuple[TransactionCoordinator, CoordinatorOutcome[Answer]]:
        new_producer_id: int | None = None
        while True:
            coordinator = self.led.find(transactional_id)
            outcome = ask(coordinator, now_ms(), new_producer_id)
            if outcome.needs_producer_id:
                new_producer_id = await self.allocate_producer_id()
                continue
            appended = self._latest.get(coordinator)
            if outcome.entries:
                appended = self.write(coordinator, outcome)
                if appended is None:
                    await self._wait_for_room(coordinator, outcome)
                    continue
            await self._wait_durable(coordinator, outcome, appended)
            return coordinator, outcome

    def _may_be_outdated(self, outcome: CoordinatorOutcome[Answer]) -> bool:
        """Tell whether another broker may have taken over, and this answer is only from memory."""
        # A superseded broker can't make entries durable in the bucket. A local log does accept its entries, so there
        # checking the lead would not help a repeated success.
        if outcome.entries:
            return False
        error_code = outcome.reply.error_code
        return error_code in FATAL_TO_PRODUCERS or (error_code == NONE and not self.internal.is_last_word)

    async def confirm_lead(self) -> None:
        """Raise KafkaError NOT_COORDINATOR if another broker has taken over."""
        try:
            await self.check_lead()
        except (Fenced, StoreError, DamagedObject) as exc:
            raise KafkaError(NOT_COORDINATOR, str(exc)) from exc

    async def init_producer_id(self, request: InitProducerId) -> ProducerReply:
        """Give a producer its id and epoch. Raises as `decide`."""

        def ask(
            coordinator: TransactionCoordinator, time_ms: int, new_producer_id: int | None
        ) -> CoordinatorOutcome[ProducerReply]:
            return coordinator.init_producer_id(request, new_producer_id=new_producer_id, now_ms=time_ms)

        reply = await self.decide(request.transactional_id, ask, until_complete=True)
        if reply.error_code == CONCURRENT_TRANSACTIONS:  # the transaction that was open had to be aborted first
            reply = await self.decide(request.transactional_id, ask)
        return reply

    async def end(self, identity: ProducerIdentity, *, committed: bool, transaction_version: int) -> ProducerReply:
        """Commit or abort. Raises as `decide`."""
        return await self.decide(
            identity.transactional_id,
            lambda coordinator, time_ms, new_producer_id: coordinator.end_transaction(
                identity,
                committed=committed,
                transaction_version=transaction_version,
                new_producer_id=new_producer_id,
                now_ms=time_ms,
            ),
            until_complete=True,
        )

    async def add_partitions(
        self,
        identity: ProducerIdentity,
        partitions: frozenset[TopicPartition],
        *,
        transaction_version: int,
        verify_only: bool = False,
    ) -> PartitionsReply:
        """Enrol partitions, or with `verify_only` tell which are enrolled. Raises as `decide`."""

        def ask(
            coordinator: TransactionCoordinator, time_ms: int, _: int | None
        ) -> CoordinatorOutcome[PartitionsReply]:
            if verify_only:
                return coordinator.verify_partitions(identity, partitions)
            return coordinator.add_partitions(
                identity, partitions, transaction_version=transaction_version, now_ms=time_ms
            )

        return await self.decide(identity.transactional_id, ask)

    def enrol_nowait(
        self, identity: ProducerIdentity, partitions: frozenset[TopicPartition], *, transaction_version: int
    ) -> dict[TopicPartition, int]:
        """Enrol partitions whose batches are appended next, without an await in between; below version 2 only verify.

        Returns an error code for each. Without one log for all partitions, they must be enrolled durably before
        (`enrol`). If they are not, or there is no room, the code is NOT_ENOUGH_REPLICAS: producers try again.
        """
        try:
            coordinator = self.led.find(identity.transactional_id)
            outcome = _enrolment(coordinator, identity, partitions, transaction_version)
            error = NONE
            if not self.internal.is_one_log and not coordinator.is_durable(outcome):
                coordinator.undo(outcome)
                error = NOT_ENOUGH_REPLICAS
            elif outcome.entries and self.write(coordinator, outcome) is None:
                error = NOT_ENOUGH_REPLICAS
        except KafkaError as exc:
            error = exc.code
        except StorageFailed:
            error = COORDINATOR_NOT_AVAILABLE
        if error != NONE:
            return dict.fromkeys(partitions, error)
        return {at: outcome.reply.error_of(at) for at in partitions}

    async def enrol(
        self, identity: ProducerIdentity, partitions: frozenset[TopicPartition], *, transaction_version: int
    ) -> dict[TopicPartition, int]:
        """Enrol partitions durably; below version 2 only verify. Returns an error code for each.

        The next append shows whether this broker still leads.
        """
        try:
            _, outcome = await self._decide(
                identity.transactional_id,
                lambda coordinator, _now, _id: _enrolment(coordinator, identity, partitions, transaction_version),
            )
        except KafkaError as exc:
            return dict.fromkeys(partitions, exc.code)
        return {at: outcome.reply.error_of(at) for at in partitions}

    @property
    def enrols_at_once(self) -> bool:
        """Tell whether enrolment never waits: this broker coordinates every id and has one log for all partitions."""
        return self.internal.is_one_log and not self.remote.has_peers

    def is_remote(self, transactional_id: str) -> bool:
        """Tell whether another broker coordinates an id, as far as this one knows."""
        return self.led.error_code(transactional_id) == NOT_COORDINATOR

    async def wait_settled(self) -> None:
        """Wait until all earlier decisions are durable. Raises KafkaError COORDINATOR_NOT_AVAILABLE."""
        for coordinator, appended in list(self._latest.items()):
            if not coordinator.is_settled:
                await _until_durable(appended)

    # ---- decisions --------------------------------------------------------------------------------------------

    def write(self, coordinator: TransactionCoordinator, outcome: CoordinatorOutcome[R]) -> Appended | None:
        """Append the last decision, or undo it: returns None if there is no room.

        Raises KafkaError NOT_COORDINATOR, StorageFailed.
        """
        try:
            time_ms = now_ms()
            appended = self.internal.append_group(self._entries(coordinator, outcome.entries, time_ms), time_ms)
        except KafkaError as exc:
            coordinator.undo(outcome)
            if exc.code == TRANSACTION_COORDINATOR_FENCED:
                logger.warning("%s-%d is coordinated elsewhere: %s", self.topic, coordinator.partition, exc)
                self._resign(coordinator)
            raise KafkaError(NOT_COORDINATOR, str(exc)) from exc
        except StorageFailed:
            coordinator.undo(outcome)
            raise
        if appended is None:
            coordinator.undo(outcome)
            return None
        self._latest[coordinator] = appended
        self._written.append(_Written(coordinator, outcome, appended))
        self._work.set()
        self._owing.set()
        self._count(outcome)
        return appended

    def _count(self, outcome: CoordinatorOutcome[R]) -> None:
        for entry in outcome.entries:
            if isinstance(entry, StateRecord) and entry.value is not None:
                if entry.value.transaction_status == TransactionState.PREPARE_COMMIT:
                    self.ended["commit"].value += 1
                elif entry.value.transaction_status == TransactionState.PREPARE_ABORT:
                    self.ended["abort"].value += 1

    def _entries(
        self, coordinator: TransactionCoordinator, decided: Sequence[StateRecord | Marker], time_ms: int
    ) -> Sequence[Entry]:
        """Return the log entries of a decision, without markers for deleted partitions."""
        own = self.internal.led_partition(self.topic, coordinator.partition)
        entries: list[Entry] = []
        for entry in decided:
            if isinstance(entry, StateRecord):
                entries.append(RecordsEntry(own, [encode_state(entry, time_ms)]))
                continue
            partition = self.internal.partition(entry.partition.topic, entry.partition.partition)
            if partition is not None:
                entries.append(EndEntry(partition, end_marker(entry), may_be_late=True))
        return entries

    def _leads(self, partition: TopicPartition) -> bool:
        """Tell whether a marker can be in the group of the decision: it is written here, or not needed."""
        if not self.internal.is_one_log:
            return False
        return self.internal.partition(partition.topic, partition.partition) is not None or not self.exists(partition)

    async def _wait_for_room(self, coordinator: TransactionCoordinator, outcome: CoordinatorOutcome[R]) -> None:
        if not coordinator.is_resigned:
            await self.internal.wait_for_room(self._entries(coordinator, outcome.entries, now_ms()))

    async def _wait_durable(
        self, coordinator: TransactionCoordinator, outcome: CoordinatorOutcome[R], appended: Appended | None
    ) -> None:
        if appended is not None and not coordinator.is_durable(outcome):
            await _until_durable(appended)
        self._done(coordinator, outcome)

    def _done(self, coordinator: TransactionCoordinator, outcome: CoordinatorOutcome[R]) -> None:
        for sending in coordinator.done(outcome):
            self._start_soon(partial(self._sender.send, coordinator, sending))

    async def _wait_complete(self, coordinator: TransactionCoordinator, transactional_id: str) -> None:
        held = coordinator.get(transactional_id)
        if held is None or not held.transaction.state.is_prepared:  # as always where the journal is one log
            return
        with trio.move_on_after(COMPLETION_SECONDS):
            while (held := coordinator.get(transactional_id)) is not None and held.transaction.state.is_prepared:
                await self._sender.progress.wait()

    async def report(
        self, coordinator: TransactionCoordinator, sent: MarkersToSend, partitions: frozenset[TopicPartition]
    ) -> None:
        """Tell a coordinator of written markers, and write its decision, however long there is no room."""
        while not coordinator.is_resigned:
            outcome = coordinator.markers_written(sent, partitions, now_ms=now_ms())
            if not outcome.entries:
                return
            try:
                if self.write(coordinator, outcome) is not None:
                    return
                await self._wait_for_room(coordinator, outcome)
            except KafkaError:
                return  # another broker coordinates it

    # ---- leadership -------------------------------------------------------------------------------------------

    def _new_coordinator(self, index: int, leader_epoch: int) -> TransactionCoordinator:
        return TransactionCoordinator(
            partition=index,
            coordinator_epoch=leader_epoch,
            settings=self.settings,
            leads=self._leads,
            places=self.places,
        )

    def _loaded(self, coordinator: TransactionCoordinator) -> None:
        """Coordinate a loaded partition, and complete the transactions that were decided before."""
        coordinator.begin()
        self._start_soon(partial(self._write_all, coordinator, lambda: coordinator.resume(now_ms=now_ms())))

    def _resigned(self, coordinator: TransactionCoordinator) -> None:
        coordinator.resign()
        self._latest.pop(coordinator, None)

    def _resign(self, coordinator: TransactionCoordinator) -> None:
        if self.led.is_current(coordinator):
            self.led.resign(coordinator.partition)

    async def abort(self, hanging: Sequence[Suspect]) -> None:
        """Abort transactions without a coordinator that are still open."""
        for suspect in hanging:
            if not suspect.is_open:
                continue  # it has ended since the search
            self.hanging.value += 1
            logger.warning(
                "%s: aborting the transaction of producer %d from offset %d on, as no coordinator knows of it",
                *(suspect.partition, suspect.transaction.producer_id, suspect.transaction.first_offset),
            )
            try:
                await self.internal.append([EndEntry(suspect.partition, suspect.marker)], now_ms())
            except KafkaError as exc:
                logger.warning("%s: the transaction is not aborted: %s", suspect.partition, exc)

    async def known(self, producer_ids: Collection[int]) -> Knowledge:
        """Return the partitions that producers have enrolled here. Raises KafkaError COORDINATOR_NOT_AVAILABLE."""
        await self.wait_settled()
        return Knowledge(
            epochs={coordinator.partition: coordinator.coordinator_epoch for coordinator in self.led},
            enrolled={
                (held.transaction.producer_id, at): held.transaction.producer_epoch
                for coordinator in self.led
                for held in coordinator
                if held.transaction.producer_id in producer_ids
                for at in held.transaction.partitions | held.outstanding
            },
        )

    # ---- without a request ------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Finish decisions whose clients have gone, send markers, and end timed-out transactions, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._settle)
            nursery.start_soon(self._complete)
            nursery.start_soon(self._watch_time)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._has_ended = True

    def _start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        """Start a task, unless `run` was cancelled: its caller may not know yet."""
        assert self._nursery is not None, "`run` must have started"
        if not self._has_ended:
            self._nursery.start_soon(task)

    async def _settle(self) -> None:
        while True:
            self._work.clear()
            while self._written:
                first = self._written[0]
                try:
                    await first.appended.wait()
                except StorageFailed as exc:
                    logger.error("%s-%d: a decision is lost: %s", self.topic, first.coordinator.partition, exc)
                    self._resign(first.coordinator)
                else:
                    self._done(first.coordinator, first.outcome)
                self._written.popleft()
            await self._work.wait()

    async def _complete(self) -> None:
        """Write COMPLETE for transactions whose id has not gone on meanwhile."""
        while True:
            await self._owing.wait()
            self._owing.clear()
            owed = [(coordinator, held) for coordinator in self.led if (held := coordinator.owed())]
            await trio.sleep(OWED_SECONDS)
            for coordinator, held in owed:
                await self._write_all(coordinator, partial(coordinator.completions, held))

    async def _watch_time(self) -> None:
        while True:
            due_ms = min(
                (due for coordinator in self.led if (due := coordinator.next_due_ms()) is not None), default=None
            )
            seconds = self.settings.transaction_cleanup_interval_ms / 1000
            if due_ms is not None:
                seconds = min(seconds, max(0.0, (due_ms - now_ms()) / 1000))
            await trio.sleep(seconds)
            for coordinator in list(self.led):
                coordinator.begin_by(now_ms())
                due = coordinator.next_due_ms()
                if due is not None and due <= now_ms():
                    await self._write_all(coordinator, partial(_due, coordinator))

    async def _write_all(
        self, coordinator: TransactionCoordinator, decide: Callable[[], Iterator[CoordinatorOutcome[None]]]
    ) -> None:
        """Write all decisions of `decide`. Without room, wait and decide anew."""
        count = 0
        while not coordinator.is_resigned:
            blocked: CoordinatorOutcome[None] | None = None
            for outcome in decide():
                count += 1
                if not outcome.entries:
                    self._done(coordinator, outcome)
                elif not self._wrote(coordinator, outcome):
                    blocked = outcome
                    break
                if count % DECISIONS_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()
            if blocked is None:
                return
            try:
                await self._wait_for_room(coordinator, blocked)
            except KafkaError:
                return

    def _wrote(self, coordinator: TransactionCoordinator, outcome: CoordinatorOutcome[None]) -> bool:
        try:
            return self.write(coordinator, outcome) is not None
        except KafkaError as exc:
            logger.warning("%s-%d: %s", self.topic, coordinator.partition, exc)
            return False


def _due(coordinator: TransactionCoordinator) -> Iterator[CoordinatorOutcome[None]]:
    return coordinator.due(now_ms=now_ms())


def _enrolment(
    coordinator: TransactionCoordinator,
    identity: ProducerIdentity,
    partitions: frozenset[TopicPartition],
    transaction_version: int,
) -> CoordinatorOutcome[PartitionsReply]:
    if transaction_version >= EPOCH_BUMP_VERSION:
        return coordinator.add_partitions(
            identity, partitions, transaction_version=transaction_version, now_ms=now_ms()
        )
    return coordinator.verify_partitions(identity, partitions)


async def _until_durable(appended: Appended) -> None:
    try:
        await appended.wait()
    except StorageFailed as exc:
        raise KafkaError(COORDINATOR_NOT_AVAILABLE, str(exc)) from exc
