"""Logs that break the rules of transactions: each rule once, and what looks like it and is none."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.registries.topic_names import TRANSACTION_STATE_NAME
from kafscale.cluster.transactions.values import StateRecord, TransactionState, encode_state
from kafscale.formats.segment import EpochStart
from kafscale.wire.batch_header import set_base_offset
from kafscale.wire.control_records import EndMarker, encode_marker
from kafscale.wire.internal_topics.transaction_state import PartitionsSchema, TransactionLogValue
from kafscale.wire.records import build_batch
from tests.devtools.fakes.transactions import transactional
from tests.devtools.history.in_log import DurableBatch, Extent, LogRules

COORDINATED = TopicPartition(TRANSACTION_STATE_NAME, 0)
X, Y = TopicPartition("payments", 0), TopicPartition("payments", 1)
PRODUCER_ID = 7
S = TransactionState


@attrs.define(eq=False)
class WrittenLog:
    """Batches that become durable one after the other, each with the next moment."""

    batches: list[DurableBatch] = attrs.field(factory=list)
    ends: dict[TopicPartition, int] = attrs.field(factory=lambda: {COORDINATED: 0, X: 0, Y: 0})

    def state(
        self,
        status: TransactionState,
        epoch: int,
        *places: TopicPartition,
        leader_epoch: int = 1,
        transaction_version: int = 0,
    ) -> None:
        value = TransactionLogValue(
            producer_id=PRODUCER_ID,
            producer_epoch=epoch,
            transaction_timeout_ms=1,
            transaction_status=int(status),
            transaction_partitions=[PartitionsSchema(place.topic, [place.partition]) for place in places],
            transaction_last_update_timestamp_ms=1,
            transaction_start_timestamp_ms=-1,
            client_transaction_version=transaction_version,
        )
        record = encode_state(StateRecord("tx", value), 1)
        self.append(COORDINATED, build_batch([record]), leader_epoch)

    def data(self, place: TopicPartition, epoch: int, *, leader_epoch: int = 1) -> None:
        self.append(place, bytearray(transactional(b"v", producer_id=PRODUCER_ID, epoch=epoch)), leader_epoch)

    def marker(
        self,
        place: TopicPartition,
        epoch: int,
        *,
        is_commit: bool = True,
        coordinator_epoch: int = 1,
        leader_epoch: int = 1,
    ) -> None:
        marker = EndMarker(
            producer_id=PRODUCER_ID,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            is_commit=is_commit,
        )
        self.append(place, encode_marker(marker, 1), leader_epoch)

    def append(self, place: TopicPartition, batch: bytearray, leader_epoch: int) -> None:
        set_base_offset(memoryview(batch), self.ends[place], leader_epoch)
        self.ends[place] += 1
        self.batches.append(DurableBatch(place, memoryview(batch), len(self.batches) + 1))

    def rules(self, *epochs: EpochStart) -> LogRules:
        extents = {place: Extent(tuple(epochs), end_offset) for place, end_offset in self.ends.items()}
        rules = LogRules(extents=extents)
        rules.take(self.batches)
        return rules


def sound() -> WrittenLog:
    """Two transactions of version 2 in both partitions, the second one ended by the next coordinator."""
    log = WrittenLog()
    log.state(S.EMPTY, 0)
    log.state(S.ONGOING, 0, X)
    log.data(X, 0)
    log.state(S.ONGOING, 0, X, Y)
    log.data(Y, 0)
    log.data(X, 0)
    log.state(S.PREPARE_COMMIT, 1, X, Y)
    log.marker(X, 1)
    log.marker(Y, 1)
    log.state(S.COMPLETE_COMMIT, 1)
    log.state(S.ONGOING, 1, X)
    log.data(X, 1)
    log.state(S.PREPARE_ABORT, 3, X, leader_epoch=2)
    log.marker(X, 3, is_commit=False, coordinator_epoch=2, leader_epoch=2)
    log.marker(X, 3, is_commit=False, coordinator_epoch=3, leader_epoch=3)
    log.state(S.COMPLETE_ABORT, 3, leader_epoch=3)
    return log


def test_a_log_that_keeps_the_rules_has_no_faults() -> None:
    rules = sound().rules()
    assert rules.faults == []
    assert rules.marker_count == 4


def undecided(log: WrittenLog) -> None:
    log.marker(X, 4)


def decided_afterwards(log: WrittenLog) -> None:
    log.state(S.ONGOING, 3, X)
    log.data(X, 3)
    log.marker(X, 4)
    log.state(S.PREPARE_COMMIT, 4, X)
    log.state(S.COMPLETE_COMMIT, 4)


def decided_otherwise(log: WrittenLog) -> None:
    log.state(S.ONGOING, 3, X)
    log.data(X, 3)
    log.state(S.PREPARE_ABORT, 4, X)
    log.marker(X, 4)


def decided_elsewhere(log: WrittenLog) -> None:
    log.state(S.ONGOING, 3, X)
    log.data(X, 3)
    log.state(S.PREPARE_COMMIT, 4, X)
    log.marker(Y, 4)


def decided_by_a_later_coordinator(log: WrittenLog) -> None:
    log.state(S.PREPARE_ABORT, 4, Y, leader_epoch=5)
    log.marker(Y, 4, is_commit=False, coordinator_epoch=4)


def not_enrolled(log: WrittenLog) -> None:
    log.state(S.ONGOING, 3, X)
    log.data(Y, 3)


def enrolled_afterwards(log: WrittenLog) -> None:
    log.data(X, 3)
    log.state(S.ONGOING, 3, X)


def complete_too_early(log: WrittenLog) -> None:
    log.state(S.ONGOING, 3, X, Y)
    log.data(X, 3)
    log.data(Y, 3)
    log.state(S.PREPARE_COMMIT, 4, X, Y)
    log.marker(X, 4)
    log.state(S.COMPLETE_COMMIT, 4)
    log.marker(Y, 4)


def gone_on_too_early(log: WrittenLog) -> None:
    log.state(S.ONGOING, 3, X, Y)
    log.data(X, 3)
    log.data(Y, 3)
    log.state(S.PREPARE_COMMIT, 4, X, Y)
    log.marker(X, 4)
    log.state(S.ONGOING, 4, X)
    log.marker(Y, 4)


def of_the_same_epoch(log: WrittenLog) -> None:
    log.state(S.ONGOING, 3, X)
    log.data(X, 3)
    log.state(S.PREPARE_ABORT, 3, X, transaction_version=2)
    log.marker(X, 3, is_commit=False)


def older_producer(log: WrittenLog) -> None:
    log.state(S.ONGOING, 3, X)
    log.data(X, 3)
    log.marker(X, 2)


def older_coordinator(log: WrittenLog) -> None:
    log.state(S.ONGOING, 3, X)
    log.data(X, 3)
    log.state(S.PREPARE_COMMIT, 4, X)
    log.marker(X, 4, coordinator_epoch=2)


def completed_again(log: WrittenLog) -> None:
    log.marker(X, 3, is_commit=False, coordinator_epoch=3, leader_epoch=3)


def completed_otherwise(log: WrittenLog) -> None:
    log.marker(X, 3, coordinator_epoch=4, leader_epoch=4)


def gone_on_and_completed_otherwise(log: WrittenLog) -> None:
    log.state(S.EMPTY, 4)
    log.marker(X, 3, coordinator_epoch=4, leader_epoch=4)


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (undecided, "payments-0 6: no coordinator has decided on"),
        (decided_afterwards, "payments-0 7: no coordinator has decided on"),
        (decided_otherwise, "payments-0 7: no coordinator has decided on"),
        (decided_elsewhere, "payments-1 2: no coordinator has decided on"),
        (decided_by_a_later_coordinator, "payments-1 2: no coordinator has decided on"),
        (completed_again, "payments-0 6: no coordinator has decided on"),
        (completed_otherwise, "payments-0 6: no coordinator has decided on"),
        (gone_on_and_completed_otherwise, "payments-0 6: no coordinator has decided on"),
        (not_enrolled, "payments-1 2: producer 7 with epoch 3 is not enrolled"),
        (enrolled_afterwards, "payments-0 6: producer 7 with epoch 3 is not enrolled"),
        (complete_too_early, "payments-1 2: tx is complete, and this is open"),
        (gone_on_too_early, "payments-1 2: tx is complete, and this is open"),
        (of_the_same_epoch, "tx is PREPARE_ABORT with epoch 3 by coordinator epoch 1, and was ONGOING with epoch 3"),
        (older_producer, "payments-0 7: producer 7 has epoch 2, and 3 was there"),
        (older_coordinator, "and 3 was there"),
    ],
)
def test_each_broken_transaction_rule_is_reported(plant: Callable[[WrittenLog], None], message: str) -> None:
    log = sound()
    plant(log)
    assert any(message in fault for fault in log.rules().faults), log.rules().faults


def test_records_truncated_by_a_crash_are_not_checked() -> None:
    log = WrittenLog()
    log.state(S.ONGOING, 0, X)
    log.data(X, 0)
    log.marker(X, 1)
    assert len(log.rules().faults) == 1
    log.ends[X] = 1
    log.state(S.PREPARE_ABORT, 2, X, leader_epoch=2)
    log.marker(X, 2, is_commit=False, coordinator_epoch=2, leader_epoch=2)
    assert log.rules(EpochStart(1, 0), EpochStart(2, 1)).faults == []


def test_a_next_transaction_may_begin_without_a_complete_record_of_the_previous_one() -> None:
    log = WrittenLog()
    log.state(S.ONGOING, 0, X)
    log.data(X, 0)
    log.state(S.PREPARE_COMMIT, 1, X)
    log.marker(X, 1)
    log.state(S.ONGOING, 1, X)
    log.data(X, 1)
    assert log.rules().faults == []


def test_a_next_coordinator_may_repeat_the_marker_of_a_completed_transaction() -> None:
    """Seed 24626: a marker that the former coordinator had sent when it ended."""
    log = sound()
    log.marker(X, 3, is_commit=False, coordinator_epoch=4, leader_epoch=4)
    assert log.rules().faults == []


def test_a_next_coordinator_may_repeat_a_marker_after_the_producer_epoch_was_raised() -> None:
    """Seed 152: the former coordinator's last records arrived after the later one had read the partition."""
    log = sound()
    log.state(S.EMPTY, 4)
    log.marker(X, 3, is_commit=False, coordinator_epoch=4, leader_epoch=4)
    assert log.rules().faults == []


def test_a_write_that_was_tried_again_is_one() -> None:
    log = sound()
    log.batches += log.batches
    assert log.rules().faults == []


def test_a_batch_between_a_prepare_record_and_its_marker_is_accepted() -> None:
    log = WrittenLog()
    log.state(S.ONGOING, 0, X)
    log.state(S.PREPARE_ABORT, 2, X)
    log.data(X, 0)
    log.marker(X, 2, is_commit=False)
    assert log.rules().faults == []


@pytest.mark.parametrize(
    ("end_offset", "at", "is_wrong"),
    [
        (0, 2, False),
        (1, 7, True),  # the marker of the first transaction, which begins at 0, is the 8th batch
        (1, 8, False),
        (3, 12, False),
        (4, 13, True),  # the second one begins at 3, and ends with the 14th
        (4, 14, False),
        (1 << 40, 13, True),
    ],
)
def test_an_end_beyond_a_transaction_that_was_open_then_is_found(end_offset: int, at: int, is_wrong: bool) -> None:
    rules = sound().rules()
    rules.check_stable(X, {end_offset: at}, "told")
    assert bool(rules.faults) == is_wrong, rules.faults


def test_deleted_transactions_need_no_coordinator_decision() -> None:
    rules = sound().rules()
    rules.check_stable(X, {1: 7}, "told", from_offset=1)
    assert rules.faults == []
