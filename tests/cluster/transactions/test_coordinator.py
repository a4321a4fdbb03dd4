"""What the coordinator answers and writes: Kafka's answers in tables, by API, version and state."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.transactions.coordinator import TransactionCoordinator
from kafscale.cluster.transactions.ledger import (
    CoordinatorOutcome,
    InitProducerId,
    MarkersToSend,
    Places,
    ProducerIdentity,
    ProducerReply,
)
from kafscale.cluster.transactions.transaction import ProducerTransaction
from kafscale.cluster.transactions.values import DUE_MAX_COUNT, Marker, StateRecord
from kafscale.cluster.transactions.values import TransactionState as S
from kafscale.config import Limits, Settings
from kafscale.wire import error_codes as e
from kafscale.wire.internal_topics.transaction_state import PartitionsSchema, TransactionLogValue

NOW = 50_000
PID = 7
P0, P1, REMOTE = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("elsewhere", 0)
SETTINGS = Settings(limits=Limits(max_transactional_ids_count=3, max_transaction_partitions_count=2))


def coordinator(*transactions: ProducerTransaction, leads: Callable[[TopicPartition], bool] = lambda p: p != REMOTE):
    made = TransactionCoordinator(
        partition=0,
        coordinator_epoch=4,
        settings=SETTINGS,
        leads=leads,
        places=Places(SETTINGS.limits.max_transactional_ids_count),
    )
    made.restore(transactions)
    return made


def transaction(state: S, epoch: int = 3, **changes: object) -> ProducerTransaction:
    """`changes` are fields of the transaction."""
    is_open = state is S.ONGOING or state.is_prepared
    base = ProducerTransaction(
        transactional_id="x",
        producer_id=PID,
        previous_producer_id=PID,
        producer_epoch=epoch,
        timeout_ms=10_000,
        state=state,
        partitions=frozenset({P0}) if is_open else frozenset(),
        start_timestamp_ms=-1 if state is S.EMPTY else 40_000,
        last_update_timestamp_ms=40_000,
        client_transaction_version=2,
    )
    return attrs.evolve(base, **changes)


def init(
    on: TransactionCoordinator, pid: int = -1, epoch: int = -1, new_producer_id: int | None = 99, **changes: object
) -> CoordinatorOutcome[ProducerReply]:
    request = InitProducerId(transactional_id="x", transaction_timeout_ms=10_000, producer_id=pid, producer_epoch=epoch)
    return on.init_producer_id(attrs.evolve(request, **changes), new_producer_id=new_producer_id, now_ms=NOW)


def add(on: TransactionCoordinator, *partitions: TopicPartition, epoch: int = 3, version: int = 2, pid: int = PID):
    identity, wanted = ProducerIdentity("x", pid, epoch), frozenset(partitions or {P0})
    return on.add_partitions(identity, wanted, transaction_version=version, now_ms=NOW)


def end(on: TransactionCoordinator, *, committed: bool, epoch: int = 3, version: int = 2, pid: int = PID):
    identity = ProducerIdentity("x", pid, epoch)
    return on.end_transaction(
        identity, committed=committed, transaction_version=version, new_producer_id=99, now_ms=NOW
    )


def report_written(on: TransactionCoordinator, partition: TopicPartition, epoch: int = 5) -> CoordinatorOutcome[None]:
    sent = MarkersToSend(transactional_id="x", producer_id=PID, producer_epoch=epoch, markers=(), group=0)
    return on.markers_written(sent, frozenset({partition}), now_ms=NOW)


def shape(outcome: CoordinatorOutcome[object]) -> list[str]:
    """What is written, in a few words."""
    words = []
    for entry in outcome.entries:
        if isinstance(entry, Marker):
            way = "commit" if entry.committed else "abort"
            words.append(f"{way} {entry.partition.topic}-{entry.partition.partition} {entry.producer_epoch}")
        elif entry.value is None:
            words.append("tombstone")
        else:
            value = entry.value
            words.append(f"{S(value.transaction_status).kafka_name} {value.producer_id}:{value.producer_epoch}")
    return words


def answer(outcome: CoordinatorOutcome[ProducerReply]) -> tuple[int, int, int]:
    reply = outcome.reply
    return reply.error_code, reply.producer_id, reply.producer_epoch


def value_of(entry: object) -> TransactionLogValue:
    assert isinstance(entry, StateRecord)
    assert entry.value is not None
    return entry.value


# -- InitProducerId --------------------------------------------------------------------------------------------------


def test_a_new_id_begins_with_a_new_producer_id_and_epoch_0() -> None:
    on = coordinator()
    assert init(on, new_producer_id=None).needs_producer_id
    assert len(on) == 0
    outcome = init(on)
    assert answer(outcome) == (e.NONE, 99, 0)
    (record,) = outcome.entries
    assert isinstance(record, StateRecord)
    assert record.transactional_id == "x"
    assert attrs.astuple(value_of(record)) == (99, 99, -1, 0, -1, 10_000, S.EMPTY, None, NOW, -1, 0)


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_an_existing_id_gets_the_next_epoch(state: S) -> None:
    outcome = init(coordinator(transaction(state)))
    assert answer(outcome) == (e.NONE, PID, 4)
    assert shape(outcome) == ["Empty 7:4"]


def test_an_ongoing_transaction_is_aborted_and_its_producer_fenced_in_the_group_that_gives_the_next_epoch() -> None:
    on = coordinator(transaction(S.ONGOING, partitions=frozenset({P1, P0})))
    outcome = init(on)
    assert shape(outcome) == ["PrepareAbort 7:5", "abort t-0 5", "abort t-1 5", "Empty 7:6"]
    assert answer(outcome) == (e.NONE, PID, 6)
    assert add(on).reply.error_code == e.PRODUCER_FENCED


def test_init_answers_concurrent_transactions_only_while_remote_markers_are_missing() -> None:
    on = coordinator(transaction(S.ONGOING, partitions=frozenset({P0, REMOTE})))
    outcome = init(on)
    assert shape(outcome) == ["PrepareAbort 7:5", "abort t-0 5"]
    assert answer(outcome) == (e.CONCURRENT_TRANSACTIONS, -1, -1)
    assert init(on).entries == ()
    assert answer(init(on)) == (e.CONCURRENT_TRANSACTIONS, -1, -1)
    (sending,) = on.done(outcome)
    assert [each.partition for each in sending.markers] == [REMOTE]
    assert shape(report_written(on, REMOTE)) == ["CompleteAbort 7:5"]
    assert answer(init(on)) == (e.NONE, PID, 6)


@pytest.mark.parametrize("timeout_ms", [0, -1, SETTINGS.transaction_max_timeout_ms + 1])
def test_a_timeout_beyond_the_allowed_one_is_refused(timeout_ms: int) -> None:
    outcome = init(coordinator(), transaction_timeout_ms=timeout_ms)
    assert answer(outcome) == (e.INVALID_TRANSACTION_TIMEOUT, -1, -1)


@pytest.mark.parametrize("request_changes", [{"transactional_id": ""}, {"pid": 7}, {"epoch": 0}])
def test_requests_that_make_no_sense_are_invalid(request_changes: dict[str, object]) -> None:
    assert init(coordinator(), **request_changes).reply.error_code == e.INVALID_REQUEST  # type: ignore[arg-type]


def test_the_epochs_of_a_producer_id_are_used_up_at_the_last_but_one() -> None:
    on = coordinator(transaction(S.EMPTY, 32_765))
    assert answer(init(on)) == (e.NONE, PID, 32_766)
    assert init(on, new_producer_id=None).needs_producer_id
    assert answer(init(on)) == (e.NONE, 99, 0)


@pytest.mark.parametrize(("epoch", "prepared"), [(32_764, 32_766), (32_765, 32_767), (32_766, 32_767)])
def test_fencing_has_an_epoch_left_where_producers_have_none(epoch: int, prepared: int) -> None:
    on = coordinator(transaction(S.ONGOING, epoch))
    outcome = init(on)
    assert shape(outcome)[0] == f"PrepareAbort 7:{prepared}"
    assert answer(outcome) == (e.NONE, 99, 0)


KIP_360 = [
    # state, epoch, last epoch; named epoch; error, producer id and epoch that are answered
    pytest.param(S.EMPTY, 3, -1, 3, (e.NONE, PID, 4), id="the present epoch is followed by the next"),
    pytest.param(S.COMPLETE_ABORT, 3, -1, 3, (e.NONE, PID, 4), id="behind a transaction too"),
    pytest.param(S.EMPTY, 3, 2, 2, (e.NONE, PID, 3), id="the last epoch repeats a request"),
    pytest.param(S.EMPTY, 3, -1, 2, (e.PRODUCER_FENCED, -1, -1), id="another one came between"),
    pytest.param(S.EMPTY, 3, -1, 4, (e.PRODUCER_FENCED, -1, -1), id="an epoch that never was"),
    pytest.param(S.EMPTY, 32_766, -1, 32_766, (e.NONE, 99, 0), id="used up"),
    pytest.param(S.EMPTY, 32_766, 32_765, 32_765, (e.NONE, PID, 32_766), id="the last epoch of one that is used up"),
    pytest.param(S.COMPLETE_ABORT, 32_767, -1, 32_767, (e.PRODUCER_FENCED, -1, -1), id="the epoch of fencing"),
    pytest.param(S.PREPARE_COMMIT, 3, 2, 2, (e.CONCURRENT_TRANSACTIONS, -1, -1), id="markers are outstanding"),
]


@pytest.mark.parametrize(("state", "epoch", "last", "named", "expected"), KIP_360)
def test_init_with_a_named_epoch_follows_kip_360(
    state: S, epoch: int, last: int, named: int, expected: tuple[int, int, int]
) -> None:
    on = coordinator(transaction(state, epoch, last_producer_epoch=last))
    assert answer(init(on, PID, named)) == expected


def test_an_init_that_gave_a_new_producer_id_can_be_repeated() -> None:
    on = coordinator(transaction(S.EMPTY, 32_766))
    assert answer(init(on, PID, 32_766)) == (e.NONE, 99, 0)
    assert answer(init(on, PID, 32_766, new_producer_id=100)) == (e.NONE, 99, 0)
    assert answer(init(on, PID, 32_766, new_producer_id=100)) == (e.NONE, 99, 0)
    assert answer(init(on, PID, 32_765)) == (e.PRODUCER_FENCED, -1, -1)


def test_a_producer_unknown_here_that_names_an_epoch_gets_a_new_id() -> None:
    assert answer(init(coordinator(), PID, 3)) == (e.NONE, 99, 0)


def test_another_producer_id_is_fenced() -> None:
    assert answer(init(coordinator(transaction(S.EMPTY)), PID + 1, 3)) == (e.PRODUCER_FENCED, -1, -1)


def test_a_zombie_that_names_its_epoch_aborts_nobodys_transaction() -> None:
    on = coordinator(transaction(S.ONGOING, 3, last_producer_epoch=2))
    outcome = init(on, PID, 2)
    assert (outcome.entries, outcome.reply.error_code) == ((), e.PRODUCER_FENCED)


def test_init_with_a_current_epoch_aborts_the_open_transaction_and_can_be_repeated() -> None:
    on = coordinator(transaction(S.ONGOING, 3))
    assert answer(init(on, PID, 3)) == (e.NONE, PID, 6)
    assert answer(init(on, PID, 3)) == (e.NONE, PID, 6)

    on = coordinator(transaction(S.ONGOING, 3, partitions=frozenset({REMOTE})))
    assert answer(init(on, PID, 3)) == (e.CONCURRENT_TRANSACTIONS, -1, -1)
    report_written(on, REMOTE)
    assert answer(init(on, PID, 3)) == (e.NONE, PID, 5)


def test_the_number_of_transactional_ids_is_limited() -> None:
    on = coordinator(*(transaction(S.EMPTY, transactional_id=f"{each}") for each in range(3)))
    outcome = init(on)
    assert (outcome.reply.error_code, outcome.entries) == (e.POLICY_VIOLATION, ())
    (expired, *_) = on.due(now_ms=40_000 + SETTINGS.transactional_id_expiration_ms)
    assert shape(expired) == ["tombstone"]
    assert answer(init(on)) == (e.NONE, 99, 0)


# -- AddPartitionsToTxn ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
@pytest.mark.parametrize("version", [0, 2])
def test_the_first_partition_begins_a_transaction(state: S, version: int) -> None:
    outcome = add(coordinator(transaction(state)), P1, P0, version=version)
    assert outcome.reply.error_code == e.NONE
    (record,) = outcome.entries
    assert value_of(record).transaction_status == S.ONGOING
    assert value_of(record).transaction_partitions == [PartitionsSchema("t", [0, 1])]
    assert value_of(record).transaction_start_timestamp_ms == NOW
    assert value_of(record).client_transaction_version == version


def test_a_repeated_enrolment_writes_nothing_and_waits_for_the_first() -> None:
    on = coordinator(transaction(S.EMPTY))
    first = add(on)
    again = add(on)
    assert (again.entries, again.reply.error_code) == ((), e.NONE)
    assert not on.is_durable(again)
    on.done(first)
    assert on.is_durable(again)


def test_a_further_partition_keeps_the_time_at_which_the_transaction_began() -> None:
    (record,) = add(coordinator(transaction(S.ONGOING)), P1).entries
    assert value_of(record).transaction_start_timestamp_ms == 40_000
    assert value_of(record).transaction_partitions == [PartitionsSchema("t", [0, 1])]


ADDING = [
    pytest.param(S.ONGOING, 3, PID + 1, e.INVALID_PRODUCER_ID_MAPPING, id="another producer id"),
    pytest.param(S.ONGOING, 2, PID, e.PRODUCER_FENCED, id="an older epoch"),
    pytest.param(S.ONGOING, 4, PID, e.PRODUCER_FENCED, id="a newer epoch"),
    pytest.param(S.PREPARE_COMMIT, 3, PID, e.CONCURRENT_TRANSACTIONS, id="committing"),
    pytest.param(S.PREPARE_ABORT, 3, PID, e.CONCURRENT_TRANSACTIONS, id="aborting"),
    pytest.param(S.PREPARE_ABORT, 2, PID, e.PRODUCER_FENCED, id="fenced before concurrent"),
]


@pytest.mark.parametrize(("state", "epoch", "pid", "error"), ADDING)
def test_a_producer_that_cannot_enrol_cannot_verify(state: S, epoch: int, pid: int, error: int) -> None:
    on = coordinator(transaction(state, partitions=frozenset({REMOTE})))
    outcome = add(on, epoch=epoch, pid=pid)
    assert (outcome.reply.error_of(P0), outcome.entries) == (error, ())
    verified = on.verify_partitions(ProducerIdentity("x", pid, epoch), frozenset({P0}))
    assert verified.reply.error_of(P0) == error


def test_an_unknown_id_and_an_empty_id_get_different_errors() -> None:
    assert add(coordinator()).reply.error_code == e.INVALID_PRODUCER_ID_MAPPING
    outcome = coordinator().add_partitions(
        ProducerIdentity("", 1, 1), frozenset({P0}), transaction_version=0, now_ms=NOW
    )
    assert outcome.reply.error_code == e.INVALID_REQUEST


def test_verifying_reports_enrolled_partitions_and_enrols_none() -> None:
    on = coordinator(transaction(S.ONGOING))
    outcome = on.verify_partitions(ProducerIdentity("x", PID, 3), frozenset({P0, P1}))
    assert [outcome.reply.error_of(each) for each in (P0, P1)] == [e.NONE, e.TRANSACTION_ABORTABLE]
    assert outcome.entries == ()


@pytest.mark.parametrize(("version", "error"), [(0, e.POLICY_VIOLATION), (2, e.TRANSACTION_ABORTABLE)])
def test_the_number_of_partitions_in_a_transaction_is_limited(version: int, error: int) -> None:
    on = coordinator(transaction(S.ONGOING))
    assert add(on, P1, version=version).reply.error_code == e.NONE
    outcome = add(on, TopicPartition("t", 2), version=version)
    assert (outcome.reply.error_code, outcome.entries) == (error, ())
    assert end(on, committed=False).reply.error_code == e.NONE


def test_the_partitions_of_a_former_transaction_are_forgotten_and_do_not_count() -> None:
    on = coordinator(transaction(S.ONGOING, partitions=frozenset({P0, P1})))
    end(on, committed=True)
    (completed,) = on.completions(on.owed())
    assert value_of(*completed.entries).transaction_partitions == []
    assert value_of(add(on, P0, epoch=4).entries[0]).transaction_partitions == [PartitionsSchema("t", [0])]
    assert add(on, P0, P1, epoch=4).reply.error_code == e.NONE


def test_the_epoch_that_is_left_for_fencing_is_nobodys() -> None:
    on = coordinator(transaction(S.COMPLETE_ABORT, 32_767))
    assert add(on, epoch=32_767).reply.error_code == e.PRODUCER_FENCED
    assert end(on, committed=False, epoch=32_767).reply.error_code == e.PRODUCER_FENCED


# -- EndTxn ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("committed", "way", "state"), [(True, "commit", "Commit"), (False, "abort", "Abort")])
def test_the_end_is_one_group_of_decision_and_markers(committed: bool, way: str, state: str) -> None:
    partitions = frozenset({P0, P1})
    plain = end(coordinator(transaction(S.ONGOING, partitions=partitions)), committed=committed, version=0)
    assert shape(plain) == [f"Prepare{state} 7:3", f"{way} t-0 3", f"{way} t-1 3"]
    assert answer(plain) == (e.NONE, -1, -1)

    bumping = end(coordinator(transaction(S.ONGOING, partitions=partitions)), committed=committed)
    assert shape(bumping) == [f"Prepare{state} 7:4", f"{way} t-0 4", f"{way} t-1 4"]
    assert answer(bumping) == (e.NONE, PID, 4)


def test_a_marker_has_the_epoch_of_its_coordinator_and_the_version_of_the_protocol() -> None:
    for version in (0, 2):
        outcome = end(coordinator(transaction(S.ONGOING)), committed=True, version=version)
        (marker,) = (each for each in outcome.entries if isinstance(each, Marker))
        assert (marker.coordinator_epoch, marker.transaction_version, marker.producer_id) == (4, version, PID)


def test_the_producer_is_answered_when_the_decision_is_durable_though_markers_are_outstanding() -> None:
    on = coordinator(transaction(S.ONGOING, partitions=frozenset({P0, REMOTE})))
    outcome = end(on, committed=True)
    assert answer(outcome) == (e.NONE, PID, 4)
    assert shape(outcome) == ["PrepareCommit 7:4", "commit t-0 4"]
    assert not on.is_durable(outcome)
    (sending,) = on.done(outcome)
    assert on.is_durable(outcome)
    assert answer(end(on, committed=True)) == (e.CONCURRENT_TRANSACTIONS, -1, -1)
    assert [(each.partition, each.producer_epoch) for each in sending.markers] == [(REMOTE, 4)]


def test_no_marker_leaves_before_its_decision_is_durable() -> None:
    on = coordinator(transaction(S.ONGOING, partitions=frozenset({REMOTE})), transaction(S.EMPTY, transactional_id="y"))
    earlier = init(on, transactional_id="y")
    outcome = end(on, committed=True)
    assert on.done(earlier) == ()
    assert len(on.done(outcome)) == 1
    assert on.done(outcome) == ()


def test_that_a_transaction_is_complete_is_written_once_and_later() -> None:
    on = coordinator(transaction(S.ONGOING))
    assert not on.owed()
    ended = end(on, committed=True)
    owed = on.owed()
    (completed,) = on.completions(owed)
    assert shape(completed) == ["CompleteCommit 7:4"]
    assert not on.owed()
    assert list(on.completions(owed)) == []
    again = end(on, committed=True)
    assert answer(again) == (e.NONE, PID, 4)
    assert on.is_durable(again) is False
    on.done(ended)
    assert on.is_durable(again), "what it says was true before"


def test_a_new_transaction_or_epoch_cancels_the_owed_completion_record() -> None:
    for goes_on in (lambda on: add(on, epoch=4), init):
        on = coordinator(transaction(S.ONGOING))
        end(on, committed=True)
        owed = on.owed()
        assert goes_on(on).entries
        assert not on.owed()
        assert list(on.completions(owed)) == []


def test_an_id_that_proceeds_during_completions_is_skipped() -> None:
    ids = ("x", "y")
    on = coordinator(*(transaction(S.ONGOING, transactional_id=each) for each in ids))
    assert len(list(on.due(now_ms=NOW + 1_000_000))) == 2
    completions = on.completions(on.owed())
    assert shape(next(completions)) == ["CompleteAbort 7:5"]
    init(on, transactional_id="y")
    assert list(completions) == []


def test_a_completion_is_still_owed_after_a_failed_append() -> None:
    on = coordinator(transaction(S.ONGOING))
    end(on, committed=True)
    for decide in (lambda: add(on, epoch=4), lambda: next(on.completions(on.owed()))):
        on.undo(decide())
        assert on.owed()
    assert [shape(each) for each in on.completions(on.owed())] == [["CompleteCommit 7:4"]]


V2 = [
    # state; abort again, abort, commit again, commit (Kafka's table at `TransactionCoordinator.endTransaction`)
    (S.EMPTY, e.PRODUCER_FENCED, None, e.PRODUCER_FENCED, e.INVALID_TXN_STATE),
    (S.COMPLETE_ABORT, e.NONE, None, e.INVALID_TXN_STATE, e.INVALID_TXN_STATE),
    (S.COMPLETE_COMMIT, e.INVALID_TXN_STATE, None, e.NONE, e.INVALID_TXN_STATE),
    (S.PREPARE_ABORT, e.CONCURRENT_TRANSACTIONS, e.PRODUCER_FENCED, e.INVALID_TXN_STATE, e.PRODUCER_FENCED),
    (S.PREPARE_COMMIT, e.INVALID_TXN_STATE, e.PRODUCER_FENCED, e.CONCURRENT_TRANSACTIONS, e.PRODUCER_FENCED),
    (S.ONGOING, e.PRODUCER_FENCED, None, e.PRODUCER_FENCED, None),
]


@pytest.mark.parametrize(("state", "abort_again", "abort", "commit_again", "commit"), V2)
def test_a_repeated_end_of_version_2_is_recognized_by_the_previous_epoch(
    state: S, abort_again: int | None, abort: int | None, commit_again: int | None, commit: int | None
) -> None:
    cases = [(False, 2, abort_again), (False, 3, abort), (True, 2, commit_again), (True, 3, commit)]
    for committed, epoch, expected in cases:
        on = coordinator(transaction(state, 3))
        outcome = end(on, committed=committed, epoch=epoch)
        if expected is None:
            assert shape(outcome)[0].endswith(" 7:4")
            assert answer(outcome) == (e.NONE, PID, 4)
        else:
            assert outcome.entries == ()
            assert answer(outcome) == ((e.NONE, PID, 3) if expected == e.NONE else (expected, -1, -1))


@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.COMPLETE_COMMIT])
def test_a_zombie_of_version_2_is_not_given_the_epoch_of_a_producer_of_version_1(state: S) -> None:
    """Kafka 4.1 takes its EndTxn for a repeated one: the epoch is the one before, and the state fits."""
    on = coordinator(transaction(state, 3, client_transaction_version=0))
    assert answer(end(on, committed=True, epoch=2)) == (e.PRODUCER_FENCED, -1, -1)


V1 = [
    # state; abort, commit
    (S.EMPTY, e.INVALID_TXN_STATE, e.INVALID_TXN_STATE),
    (S.COMPLETE_ABORT, e.NONE, e.INVALID_TXN_STATE),
    (S.COMPLETE_COMMIT, e.INVALID_TXN_STATE, e.NONE),
    (S.PREPARE_ABORT, e.CONCURRENT_TRANSACTIONS, e.INVALID_TXN_STATE),
    (S.PREPARE_COMMIT, e.INVALID_TXN_STATE, e.CONCURRENT_TRANSACTIONS),
    (S.ONGOING, None, None),
]


@pytest.mark.parametrize(("state", "abort", "commit"), V1)
def test_a_repeated_end_of_version_1_is_recognized_by_the_state(
    state: S, abort: int | None, commit: int | None
) -> None:
    for committed, expected in ((False, abort), (True, commit)):
        outcome = end(coordinator(transaction(state, 3)), committed=committed, version=0)
        assert (outcome.reply.error_code, bool(outcome.entries)) == (expected or e.NONE, expected is None)
        for epoch in (2, 4):
            other = end(coordinator(transaction(state, 3)), committed=committed, version=0, epoch=epoch)
            assert (other.reply.error_code, other.entries) == (e.PRODUCER_FENCED, ())


@pytest.mark.parametrize("version", [0, 2])
def test_the_end_of_another_producers_transaction_is_refused(version: int) -> None:
    for on in (coordinator(), coordinator(transaction(S.ONGOING, producer_id=PID + 1))):
        outcome = end(on, committed=True, version=version)
        assert (outcome.reply.error_code, outcome.entries) == (e.INVALID_PRODUCER_ID_MAPPING, ())


def test_version_2_aborts_where_nothing_was_enrolled_and_bumps_the_epoch() -> None:
    outcome = end(coordinator(transaction(S.EMPTY)), committed=False)
    assert shape(outcome) == ["PrepareAbort 7:4"]
    assert [value_of(each).transaction_start_timestamp_ms for each in outcome.entries] == [NOW]


def test_a_used_up_producer_id_is_replaced_at_the_end_and_a_repeated_request_learns_the_new_one() -> None:
    on = coordinator(transaction(S.ONGOING, 32_766))
    identity = ProducerIdentity("x", PID, 32_766)
    assert on.end_transaction(identity, committed=True, transaction_version=2, now_ms=NOW).needs_producer_id
    outcome = end(on, committed=True, epoch=32_766)
    assert shape(outcome) == ["PrepareCommit 7:32767", "commit t-0 32767"]
    assert answer(outcome) == (e.NONE, 99, 0)
    assert value_of(outcome.entries[0]).next_producer_id == 99
    (completed,) = on.completions(on.owed())
    assert shape(completed) == ["CompleteCommit 99:0"]
    value = value_of(*completed.entries)
    assert (value.previous_producer_id, value.next_producer_id) == (PID, -1)
    assert answer(end(on, committed=True, epoch=32_766)) == (e.NONE, 99, 0)
    assert answer(end(on, committed=False, epoch=32_766)) == (e.INVALID_TXN_STATE, -1, -1)
    assert add(on, pid=99, epoch=0).reply.error_code == e.NONE


def test_version_1_never_needs_a_new_producer_id_at_the_end() -> None:
    outcome = end(coordinator(transaction(S.ONGOING, 32_766)), committed=True, epoch=32_766, version=0)
    assert shape(outcome) == ["PrepareCommit 7:32766", "commit t-0 32766"]


# -- Markers of other brokers ----------------------------------------------------------------------------------------


def test_the_last_marker_completes_the_transaction_and_older_markers_are_ignored() -> None:
    there = TopicPartition("elsewhere", 1)
    on = coordinator(transaction(S.ONGOING, partitions=frozenset({REMOTE, there})), leads=lambda _: False)
    end(on, committed=True)

    def written(partition: TopicPartition, epoch: int) -> list[str]:
        return shape(report_written(on, partition, epoch))

    assert written(REMOTE, 4) == []
    assert written(there, 3) == []
    assert written(REMOTE, 4) == []
    assert written(there, 4) == ["CompleteCommit 7:4"]
    assert written(there, 4) == []


# -- Time ------------------------------------------------------------------------------------------------------------


def test_a_transaction_past_its_timeout_is_aborted_with_a_bump_and_not_before() -> None:
    on = coordinator(transaction(S.ONGOING))
    assert on.next_due_ms() == 50_001
    assert list(on.due(now_ms=50_000)) == []
    (outcome,) = on.due(now_ms=50_001)
    assert shape(outcome) == ["PrepareAbort 7:5", "abort t-0 5"]
    assert end(on, committed=True).reply.error_code == e.PRODUCER_FENCED
    assert end(on, committed=False, epoch=3).reply.error_code == e.PRODUCER_FENCED


def test_a_transaction_that_another_broker_s_clock_had_begin_in_the_future_times_out_from_now_on() -> None:
    on = coordinator(transaction(S.ONGOING))
    assert list(on.resume(now_ms=5_000)) == []
    assert on.next_due_ms() == 15_001
    (outcome,) = on.due(now_ms=15_001)
    assert shape(outcome) == ["PrepareAbort 7:5", "abort t-0 5"]


def test_an_unused_id_expires_but_an_id_with_an_open_transaction_does_not() -> None:
    on = coordinator(
        transaction(S.COMPLETE_COMMIT),
        transaction(S.ONGOING, transactional_id="open", timeout_ms=1 << 40),
        transaction(S.PREPARE_COMMIT, transactional_id="prepared", partitions=frozenset({REMOTE})),
    )
    expiry_ms = 40_000 + SETTINGS.transactional_id_expiration_ms
    assert list(on.due(now_ms=expiry_ms - 1)) == []
    (outcome,) = on.due(now_ms=expiry_ms)
    assert outcome.entries == (StateRecord("x", None),)
    assert on.get("x") is None
    assert [len(on), on.next_due_ms()] == [2, 40_000 + (1 << 40) + 1]


def test_due_work_is_bounded_in_each_round() -> None:
    on = coordinator(*(transaction(S.EMPTY, transactional_id=f"{each}") for each in range(DUE_MAX_COUNT + 1)))
    assert len(list(on.due(now_ms=1 << 40))) == DUE_MAX_COUNT
    assert len(list(on.due(now_ms=1 << 40))) == 1


def test_a_clock_that_is_set_back_does_not_set_records_back() -> None:
    (record,) = add(coordinator(transaction(S.EMPTY, last_update_timestamp_ms=NOW + 5))).entries
    assert value_of(record).transaction_last_update_timestamp_ms == NOW + 5
    assert value_of(record).transaction_start_timestamp_ms == NOW + 5


# -- An administrator's abort ----------------------------------------------------------------------------------------


# -- Restored, taken back, resigned ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "way"), [(S.PREPARE_COMMIT, "commit"), (S.PREPARE_ABORT, "abort")])
def test_the_next_coordinator_writes_the_markers_of_decided_transactions(state: S, way: str) -> None:
    on = coordinator(transaction(state, partitions=frozenset({P0, P1})))
    (outcome,) = on.resume(now_ms=NOW)
    assert shape(outcome) == [f"{way} t-0 3", f"{way} t-1 3", f"Complete{state.kafka_name[7:]} 7:3"]
    assert list(on.resume(now_ms=NOW)) == []


def test_markers_for_other_brokers_are_sent_again_by_the_next_coordinator_and_when_connections_are_lost() -> None:
    on = coordinator(transaction(S.PREPARE_COMMIT, partitions=frozenset({REMOTE})))
    for _ in range(2):
        (outcome,) = on.resume(now_ms=NOW)
        assert outcome.entries == ()
        (sending,) = on.done(outcome)
        assert [each.coordinator_epoch for each in sending.markers] == [4]


def test_markers_of_a_partition_that_came_here_meanwhile_are_written_here() -> None:
    elsewhere = {REMOTE}
    on = coordinator(transaction(S.PREPARE_COMMIT, partitions=frozenset({REMOTE})), leads=lambda p: p not in elsewhere)
    list(on.resume(now_ms=NOW))
    elsewhere.clear()
    (outcome,) = on.resume(now_ms=NOW)
    assert shape(outcome) == ["commit elsewhere-0 3", "CompleteCommit 7:3"]


def test_a_fence_that_another_broker_has_begun_ends_in_an_abort() -> None:
    on = coordinator(transaction(S.PREPARE_EPOCH_FENCE, partitions=frozenset({P0})))
    (outcome,) = on.resume(now_ms=NOW)
    assert shape(outcome)[0] == "PrepareAbort 7:5"


def test_a_decision_that_the_log_refuses_is_taken_back() -> None:
    on = coordinator(transaction(S.ONGOING, partitions=frozenset({P0, REMOTE})))
    outcome = end(on, committed=True)
    on.undo(outcome)
    assert on.is_settled
    again = end(on, committed=False)
    assert shape(again) == ["PrepareAbort 7:4", "abort t-0 4"]
    (sending,) = on.done(again)
    assert [each.committed for each in sending.markers] == [False]


def test_a_first_init_that_the_log_refuses_leaves_no_id_behind() -> None:
    on = coordinator()
    on.undo(init(on))
    assert [len(on), on.places.count, on.next_due_ms()] == [0, 0, None]


def test_a_resigned_coordinator_refuses_requests_and_writes_nothing() -> None:
    on = coordinator(transaction(S.ONGOING))
    outcome = end(on, committed=True)
    on.resign()
    on.undo(outcome)
    assert on.done(outcome) == ()
    assert on.places.count == 0
    for code in (
        init(on).reply.error_code,
        add(on).reply.error_code,
        end(on, committed=True).reply.error_code,
    ):
        assert code == e.NOT_COORDINATOR
    assert list(on.due(now_ms=1 << 50)) == list(on.resume(now_ms=NOW)) == []


def test_a_state_record_round_trips_except_for_the_last_epoch() -> None:
    for state in (S.EMPTY, S.ONGOING, S.PREPARE_ABORT, S.COMPLETE_COMMIT):
        before = transaction(state, last_producer_epoch=2, next_producer_id=12)
        value = value_of(before.record())
        assert ProducerTransaction.of("x", value) == attrs.evolve(before, last_producer_epoch=-1)
    with pytest.raises(ValueError, match="8"):
        ProducerTransaction.of("x", attrs.evolve(value, transaction_status=8))
