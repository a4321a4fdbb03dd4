"""A world for the transaction coordinator: one write-ahead log, partitions here and elsewhere, producers that repeat.

The log is a list of entries of which a prefix is durable; a crash keeps that, and any number of those behind it. What
partitions hold is worked out from it, and from the logs of partitions that other brokers lead, which are durable at
once. `Claims` are what producers asked for and were told of each transaction; `check_outcomes` holds the markers
against them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.coordinator import TransactionCoordinator
from kafscale.cluster.transactions.ledger import CoordinatorOutcome, MarkersToSend, Places
from kafscale.cluster.transactions.values import Marker, StateRecord
from kafscale.config import Settings


@attrs.frozen
class Data:
    """A transactional batch."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    token: int  # which transaction of which producer, as the test counts them


@attrs.define
class Claims:
    """One transaction: the producer's intent, and the answers that it got."""

    asked_commit: bool = False
    told_committed: bool | None = None


@attrs.define
class _Open:
    epoch: int
    first_offset: int
    tokens: set[int]


@attrs.define
class PartitionModel:
    """State of a partition by its log: the rules of a leader, in as few lines as they need."""

    epochs: dict[int, int] = attrs.field(factory=dict)  # by producer id
    coordinator_epochs: dict[int, int] = attrs.field(factory=dict)
    open: dict[int, _Open] = attrs.field(factory=dict)
    end_offset: int = 0
    ended: dict[int, bool] = attrs.field(factory=dict)  # by token: whether it was committed

    @classmethod
    def of(cls, entries: list[Data | Marker]) -> PartitionModel:
        model = cls()
        for entry in entries:
            assert model.accepts(entry), f"{entry} is in the log"
            model.apply(entry)
        return model

    @property
    def last_stable_offset(self) -> int:
        return min((opened.first_offset for opened in self.open.values()), default=self.end_offset)

    def accepts(self, entry: Data | Marker) -> bool:
        known = self.epochs.get(entry.producer_id, -1)
        if isinstance(entry, Marker) and entry.coordinator_epoch < self.coordinator_epochs.get(entry.producer_id, -1):
            return False  # TRANSACTION_COORDINATOR_FENCED
        return entry.producer_epoch >= known

    def apply(self, entry: Data | Marker) -> None:
        self.epochs[entry.producer_id] = entry.producer_epoch
        if isinstance(entry, Data):
            opened = self.open.setdefault(entry.producer_id, _Open(entry.producer_epoch, self.end_offset, set()))
            assert opened.epoch == entry.producer_epoch, f"{entry} goes on with a transaction of epoch {opened.epoch}"
            assert entry.token not in self.ended, f"{entry} comes behind its marker"
            opened.tokens.add(entry.token)
        else:
            self.coordinator_epochs[entry.producer_id] = entry.coordinator_epoch
            now = self.open.get(entry.producer_id)
            if now is not None and (entry.transaction_version < 2 or entry.producer_epoch > now.epoch):
                self.ended.update(dict.fromkeys(now.tokens, entry.committed))
                del self.open[entry.producer_id]
        self.end_offset += 1


@attrs.define
class World:
    """One broker with a coordinator, and partitions of which some are led elsewhere."""

    partitions: tuple[TopicPartition, ...]
    settings: Settings = attrs.field(factory=Settings)
    journal: list[StateRecord | Marker | Data] = attrs.field(factory=list)
    durable_count: int = 0
    elsewhere: dict[TopicPartition, list[Data | Marker]] = attrs.field(factory=dict)  # logs of other brokers
    coordinator: TransactionCoordinator = attrs.field(init=False)
    places: Places = attrs.field(init=False)
    unwritten: list[tuple[int, CoordinatorOutcome[Any]]] = attrs.field(factory=list)  # end in the journal, and outcome
    sending: list[MarkersToSend] = attrs.field(factory=list)
    claims: dict[int, Claims] = attrs.field(factory=dict)
    coordinator_epoch: int = 0
    now_ms: int = 1_000_000
    stable_offsets: dict[TopicPartition, int] = attrs.field(factory=dict)
    brought: dict[TopicPartition, list[Data | Marker]] = attrs.field(factory=dict)  # what partitions came back with

    def __attrs_post_init__(self) -> None:
        self.places = Places(self.settings.limits.max_transactional_ids_count)
        self.start()

    def start(self) -> None:
        """Load the coordinator from the log, as a broker's start does, and finish what is decided."""
        self.coordinator_epoch += 1
        self.places.count = 0
        self.coordinator = self.load(self.journal, self.coordinator_epoch, self.places)
        self.resume()

    def load(
        self, entries: list[StateRecord | Marker | Data], coordinator_epoch: int, places: Places
    ) -> TransactionCoordinator:
        coordinator = TransactionCoordinator(
            partition=0,
            coordinator_epoch=coordinator_epoch,
            settings=self.settings,
            leads=lambda partition: partition not in self.elsewhere,
            places=places,
        )
        for entry in entries:
            if isinstance(entry, StateRecord):
                coordinator.apply_state(entry)
        coordinator.begin()
        return coordinator

    # -- The log -----------------------------------------------------------------------------------------------------

    def write(self, outcome: CoordinatorOutcome[Any], *behind: Data) -> None:
        """Hand a group to the log."""
        self.journal += [*outcome.entries, *behind]
        self.unwritten.append((len(self.journal), outcome))

    def sync(self, count: int | None = None) -> None:
        """Make the log durable up to the end, or `count` more entries of it, and all learn of it."""
        end = len(self.journal) if count is None else min(len(self.journal), self.durable_count + count)
        self.durable_count = end
        while self.unwritten and self.unwritten[0][0] <= end:
            outcome = self.unwritten.pop(0)[1]
            for sending in self.coordinator.done(outcome):
                for marker in sending.markers:
                    self._check_decided(marker)
                self.sending.append(sending)
        self._look_at_stable_offsets()

    def crash(self, kept_count: int) -> None:
        """Lose all but what is durable, and so many entries behind it; start again."""
        del self.journal[self.durable_count + kept_count :]
        self.durable_count = len(self.journal)
        self.unwritten.clear()
        self.coordinator.resign()
        assert self.places.count == 0
        self.start()

    def check_every_crash(self) -> None:
        """Whatever a crash at this moment leaves, it comes to a good end."""
        for count in range(self.durable_count, len(self.journal) + 1):
            after = World(
                self.partitions,
                settings=self.settings,
                journal=self.journal[:count],
                durable_count=count,
                elsewhere={partition: list(log) for partition, log in self.elsewhere.items()},
                brought={partition: list(log) for partition, log in self.brought.items()},
                sending=list(self.sending),
                claims=self.claims,
                coordinator_epoch=self.coordinator_epoch,
                now_ms=self.now_ms,
            )
            after.settle()
            after.check()
            after.check_outcomes()

    def resume(self) -> None:
        for outcome in self.coordinator.resume(now_ms=self.now_ms):
            self.write(outcome)

    def run_due(self) -> None:
        while (due_ms := self.coordinator.next_due_ms()) is not None and due_ms <= self.now_ms:
            for outcome in self.coordinator.due(now_ms=self.now_ms):
                self.write(outcome)

    def complete(self) -> None:
        """Write what is owed to the log."""
        for outcome in self.coordinator.completions(self.coordinator.owed()):
            self.write(outcome)

    # -- Partitions --------------------------------------------------------------------------------------------------

    def log(self, partition: TopicPartition, count: int | None = None) -> list[Data | Marker]:
        """Return what is in a partition; of the journal's entries, the first so many."""
        if partition in self.elsewhere:
            return self.elsewhere[partition]
        here = [
            entry
            for entry in self.journal[:count]
            if not isinstance(entry, StateRecord) and entry.partition == partition
        ]
        return [*self.brought.get(partition, ()), *here]

    def model(self, partition: TopicPartition, count: int | None = None) -> PartitionModel:
        return PartitionModel.of(self.log(partition, count))

    def move(self, partition: TopicPartition) -> None:
        """Hand a partition over to another broker, or take it back; what it has is durable before."""
        self.sync()
        log, was_here = self.log(partition), partition not in self.elsewhere
        self.journal = [entry for entry in self.journal if not self._is_of(entry, partition)]
        self.durable_count = len(self.journal)
        self.brought.pop(partition, None)
        self.elsewhere.pop(partition, None)
        (self.elsewhere if was_here else self.brought)[partition] = log
        self.resume()

    @staticmethod
    def _is_of(entry: StateRecord | Marker | Data, partition: TopicPartition) -> bool:
        return not isinstance(entry, StateRecord) and entry.partition == partition

    def deliver(self, sending: MarkersToSend, take: Callable[[Marker], bool] = lambda _: True) -> None:
        """Let the leaders of these partitions write their markers, and tell the coordinator."""
        written = set()
        for marker in filter(take, sending.markers):
            log = self.log(marker.partition)
            if marker.partition not in self.elsewhere:
                continue  # it is led here by now, and `resume` has written its marker
            model = self.model(marker.partition)
            if model.accepts(marker):
                log.append(marker)
                written.add(marker.partition)
            elif marker.producer_epoch < model.epochs.get(marker.producer_id, -1):
                written.add(marker.partition)
        outcome = self.coordinator.markers_written(sending, frozenset(written), now_ms=self.now_ms)
        self.write(outcome)

    def _check_decided(self, marker: Marker) -> None:
        """A marker leaves the broker only when its decision is durable."""
        assert any(_is_decision(entry, marker) for entry in self.journal[: self.durable_count]), (
            f"{marker} was sent before it was decided"
        )

    # -- What must hold ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Hold what is there now against the rules that any moment must keep."""
        self._check_order()
        for count in range(self.durable_count, len(self.journal) + 1):
            self._check_prefix(count)
        loaded = self.load(self.journal, self.coordinator_epoch + 1, Places(1 << 20))
        for held in self.coordinator:
            restored = loaded.get(held.transaction.transactional_id)
            assert restored is not None, f"{held} is in no record"
            now, said = held.transaction, restored.transaction
            if held.is_owed:
                said = said.completed(now_ms=now.last_update_timestamp_ms)
            assert attrs.evolve(said, last_producer_epoch=now.last_producer_epoch) == now
        owed = {id(held) for held in self.coordinator if held.is_owed}
        assert owed == {id(held) for held in self.coordinator.owed()}
        assert len(loaded) == len(self.coordinator) == self.places.count

    def _check_order(self) -> None:
        """Every marker in the log stands behind the decision that it carries out."""
        for at, entry in enumerate(self.journal):
            if isinstance(entry, Marker):
                assert any(_is_decision(earlier, entry) for earlier in self.journal[:at]), (
                    f"{entry} before its decision"
                )

    def _check_prefix(self, count: int) -> None:
        """Check that a coordinator that starts from these entries finds every open transaction, and will end it."""
        loaded = self.load(self.journal[:count], self.coordinator_epoch + 1, Places(1 << 20))
        known = {
            (held.transaction.producer_id, partition)
            for held in loaded
            for partition in (held.outstanding if held.transaction.state.is_prepared else held.transaction.partitions)
        }
        for partition in self.partitions:
            for producer_id in PartitionModel.of(self.log(partition, count)).open:
                assert (producer_id, partition) in known, f"nobody would end the transaction in {partition}"

    def _look_at_stable_offsets(self) -> None:
        for partition in self.partitions:
            stable = self.model(partition, self.durable_count).last_stable_offset
            assert stable >= self.stable_offsets.get(partition, 0), f"the last stable offset of {partition} went back"
            self.stable_offsets[partition] = stable

    def settle(self) -> None:
        """Let time pass until every transaction has timed out, and every marker has arrived."""
        self.sync()
        self.now_ms += self.settings.transaction_max_timeout_ms + 1
        self.run_due()
        self.complete()
        self.resume()
        self.sync()
        while self.sending:
            self.deliver(self.sending.pop(0))
            self.sync()

    def check_outcomes(self) -> None:
        """Every transaction has ended everywhere in one way, which is what its producer was told."""
        ends: dict[int, set[bool]] = {}
        for partition in self.partitions:
            model = self.model(partition)
            assert not model.open, f"{partition} has transactions that never end"
            for token, committed in model.ended.items():
                ends.setdefault(token, set()).add(committed)
        for token, ways in ends.items():
            claims = self.claims[token]
            assert len(ways) == 1, f"transaction {token} is committed in one partition, and aborted in another"
            (committed,) = ways
            assert claims.asked_commit or not committed, f"transaction {token} was never to be committed"
            assert claims.told_committed in (None, committed), f"the producer was told otherwise of {token}"
        assert not any(held.outstanding for held in self.coordinator)


def _is_decision(entry: object, marker: Marker) -> bool:
    if not isinstance(entry, StateRecord) or entry.value is None:
        return False
    value = entry.value
    who = (value.producer_id, value.producer_epoch) == (marker.producer_id, marker.producer_epoch)
    return who and value.transaction_status == (2 if marker.committed else 3)
