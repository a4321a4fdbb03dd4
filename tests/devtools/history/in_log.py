"""Checker of the rules of the log by which transactions survive any crash, batch by batch as they become durable.

    enrolment before data       a transactional batch is where the coordinator has enrolled its producer's transaction
                                of this epoch
    decision before markers     a marker follows the coordinator's PREPARE record with that outcome, that epoch and this
                                partition
    markers before the end      a transaction that the coordinator has completed, or gone on from, is open nowhere
    epochs never go back        of a producer, and of its coordinator, in any partition
    decisions have new epochs   under the second version of the protocol, as all timeouts do
    nothing beyond the LSO      no compaction, no retention and no answer about stability has passed the first offset of
                                a transaction whose marker was not there

The leader epochs of the final log tell which batches of a crashed write are in it. Nothing here asks a broker for
anything else, so a seed fails even if no client could see the damage.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import attrs

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.registries.topic_names import TRANSACTION_STATE_NAME
from kafscale.cluster.transactions.transaction import EPOCH_BUMP_VERSION
from kafscale.cluster.transactions.values import TransactionState, decode_state
from kafscale.formats.resolution import epoch_at
from kafscale.formats.segment import EpochStart
from kafscale.wire.batch_header import BatchHeader, parse_header
from kafscale.wire.control_records import EndMarker, parse_marker
from kafscale.wire.internal_topics.transaction_state import TransactionLogValue
from kafscale.wire.records import iterate_records

FENCING_MAX_COUNT = 2  # by how much a decision may raise the epoch of its transaction


@attrs.frozen
class DurableBatch:
    """A batch of a partition, and the moment from which on it was durable, if a crash has left it."""

    place: TopicPartition
    batch: memoryview
    at: float


@attrs.frozen
class Extent:
    epochs: tuple[EpochStart, ...]
    next_offset: int

    def holds(self, header: BatchHeader) -> bool:
        """Tell whether a batch became a part of the log, and was neither lost nor refused."""
        known = epoch_at(self.epochs, header.base_offset)
        return header.base_offset < self.next_offset and known in (-1, header.leader_epoch)


@attrs.define(eq=False)
class _Spell:
    first_offset: int
    ended_at: float = math.inf


@attrs.define(eq=False)
class _Epochs:
    producer: int = -1
    coordinator: int = -1


@attrs.frozen
class _State:
    value: TransactionLogValue
    leader_epoch: int

    def __str__(self) -> str:
        return f"{self.status.name} with epoch {self.value.producer_epoch} by coordinator epoch {self.leader_epoch}"

    @property
    def status(self) -> TransactionState:
        return TransactionState(self.value.transaction_status)

    def ends(self, former: _State | None) -> bool:
        """Tell whether it ends a transaction: it is complete, or its id has gone on from a decision."""
        if self.status in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
            return True
        return former is not None and former.status.is_prepared and not self.status.is_prepared

    def repeats_epoch_of(self, ongoing: _State) -> bool:
        """Tell whether it is a decision of version 2 without a new epoch."""
        is_decision = ongoing.status is TransactionState.ONGOING and self.status.is_prepared
        has_risen = self.value.producer_epoch > ongoing.value.producer_epoch
        return is_decision and self.value.client_transaction_version >= EPOCH_BUMP_VERSION and not has_risen

    def has(self, place: TopicPartition) -> bool:
        return any(
            transaction_partition.topic == place.topic and place.partition in transaction_partition.partition_ids
            for transaction_partition in self.value.transaction_partitions or ()
        )

    def allows_data(self, place: TopicPartition, epoch: int) -> bool:
        """Tell whether a batch may be there: partitions have separate logs, so it may come after the decision, but
        before the marker.
        """
        raised_by = self.value.producer_epoch - epoch
        if self.status.is_prepared:
            return 0 <= raised_by <= FENCING_MAX_COUNT and self.has(place)
        return self.status is TransactionState.ONGOING and not raised_by and self.has(place)

    def allows_marker(self, place: TopicPartition, marker: EndMarker, *, is_open: bool) -> bool:
        """Tell whether this outcome is decided, or was by an earlier coordinator that has completed it since."""
        if self.value.producer_epoch != marker.producer_epoch:
            return False
        if self.status is (TransactionState.PREPARE_COMMIT if marker.is_commit else TransactionState.PREPARE_ABORT):
            return self.has(place) and marker.coordinator_epoch >= self.leader_epoch
        completed = TransactionState.COMPLETE_COMMIT if marker.is_commit else TransactionState.COMPLETE_ABORT
        return self.status is completed and marker.coordinator_epoch > self.leader_epoch and not is_open


@attrs.define(eq=False, kw_only=True)
class LogRules:
    """Takes all batches in the order in which they became durable, and then compactions and answers."""

    extents: Mapping[TopicPartition, Extent]
    faults: list[str] = attrs.field(factory=list, init=False)
    marker_count: int = attrs.field(default=0, init=False)
    _taken: set[tuple[TopicPartition, int, int]] = attrs.field(factory=set, init=False)
    _states: dict[str, _State] = attrs.field(factory=dict, init=False)
    _decisions: dict[str, _State] = attrs.field(factory=dict, init=False)  # the last one of each transactional id
    _ids: dict[int, str] = attrs.field(factory=dict, init=False)  # of producers
    _open: defaultdict[int, dict[TopicPartition, _Spell]] = attrs.field(factory=lambda: defaultdict(dict), init=False)
    _epochs: defaultdict[tuple[TopicPartition, int], _Epochs] = attrs.field(
        factory=lambda: defaultdict(_Epochs), init=False
    )
    _spells: defaultdict[TopicPartition, list[_Spell]] = attrs.field(factory=lambda: defaultdict(list), init=False)

    def take(self, batches: Iterable[DurableBatch]) -> None:
        for batch in batches:
            is_state = batch.place.topic == TRANSACTION_STATE_NAME
            header = parse_header(batch.batch)
            extent = self.extents.get(batch.place)
            if extent is None or not (is_state or header.is_transactional) or not extent.holds(header):
                continue
            key = (batch.place, header.leader_epoch, header.base_offset)
            if key in self._taken:  # a write that was tried again
                continue
            self._taken.add(key)
            if is_state:
                self._take_states(batch, header)
            elif header.is_control:
                self._take_marker(batch, header)
            else:
                self._take_data(batch, header)

    def _take_states(self, each: DurableBatch, header: BatchHeader) -> None:
        for record in iterate_records(each.batch):
            found = decode_state(record)
            if found is None or found.value is None:
                continue
            former = self._states.get(found.transactional_id)
            state = self._states[found.transactional_id] = _State(found.value, header.leader_epoch)
            if state.status.is_prepared:
                self._decisions[found.transactional_id] = state
            if former is not None and state.repeats_epoch_of(former):
                self._fault(each.place, record.offset, f"{found.transactional_id} is {state}, and was {former}")
            self._ids[found.value.producer_id] = found.transactional_id
            if state.ends(former):
                ended = state if former is None else former  # the next one may have another producer id
                for place, spell in self._open[ended.value.producer_id].items():
                    self._fault(place, spell.first_offset, f"{found.transactional_id} is complete, and this is open")

    def _take_data(self, each: DurableBatch, header: BatchHeader) -> None:
        self._follow(each.place, header)
        spells = self._open[header.producer_id]
        if each.place not in spells:
            spells[each.place] = _Spell(header.base_offset)
            self._spells[each.place].append(spells[each.place])
        state = self._state_of(header)
        if state is None or not state.allows_data(each.place, header.producer_epoch):
            what = f"producer {header.producer_id} with epoch {header.producer_epoch} is not enrolled"
            self._fault(each.place, header.base_offset, f"{what}: {state}")

    def _take_marker(self, each: DurableBatch, header: BatchHeader) -> None:
        marker = parse_marker(each.batch, header)
        if marker is None:
            return
        self.marker_count += 1
        newest = self._follow(each.place, header)
        if marker.coordinator_epoch < newest.coordinator:
            self._fault(each.place, header.base_offset, f"{marker}, and {newest.coordinator} was there")
        newest.coordinator = max(newest.coordinator, marker.coordinator_epoch)
        state = self._state_of(header)
        spell = self._open[marker.producer_id].pop(each.place, None)
        if state is None or not (
            state.allows_marker(each.place, marker, is_open=spell is not None)
            or (spell is None and self._is_repeated(each.place, marker, state))
        ):
            self._fault(each.place, header.base_offset, f"no coordinator has decided on {marker}: {state}")
        if spell is not None:
            spell.ended_at = each.at

    def _is_repeated(self, place: TopicPartition, marker: EndMarker, state: _State) -> bool:
        """Tell whether a later coordinator repeats the marker of a decision.

        It began before the last records of an earlier coordinator arrived: these complete the transaction, and may have
        begun the next epoch of the producer.
        """
        decision = self._decisions.get(self._ids[marker.producer_id])
        is_later = marker.coordinator_epoch > state.leader_epoch
        return is_later and decision is not None and decision.allows_marker(place, marker, is_open=False)

    def _follow(self, place: TopicPartition, header: BatchHeader) -> _Epochs:
        newest = self._epochs[place, header.producer_id]
        if header.producer_epoch < newest.producer:
            what = f"producer {header.producer_id} has epoch {header.producer_epoch}"
            self._fault(place, header.base_offset, f"{what}, and {newest.producer} was there")
        newest.producer = max(newest.producer, header.producer_epoch)
        return newest

    def _state_of(self, header: BatchHeader) -> _State | None:
        return self._states.get(self._ids.get(header.producer_id, ""))

    def _fault(self, place: TopicPartition, offset: int, what: str) -> None:
        self.faults.append(f"{place.topic}-{place.partition} {offset}: {what}")

    def check_stable(self, place: TopicPartition, ends: Mapping[int, int], what: str, *, from_offset: int = 0) -> None:
        """Check ends that were taken for stable, each with its moment, against the transactions.

        from_offset: earlier transactions have been deleted, decided or not.
        """
        spells = [spell for spell in self._spells[place] if spell.first_offset >= from_offset]
        first_offsets = [spell.first_offset for spell in spells]
        latest = list(_running_max(spell.ended_at for spell in spells))
        for end_offset, at in ends.items():
            count = bisect_left(first_offsets, end_offset)
            if count and latest[count - 1] > at:
                open_offset = next(spell.first_offset for spell in spells if spell.ended_at > at)
                self._fault(place, end_offset, f"{what}, and a transaction was open from {open_offset} on")


def _running_max(values: Iterable[float]) -> Iterator[float]:
    largest = -math.inf
    for value in values:
        largest = max(largest, value)
        yield largest
