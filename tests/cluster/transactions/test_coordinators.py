"""Which coordinator an id has, what loading one makes of the records, and the answers of Describe and List."""

from __future__ import annotations

import attrs
import pytest

from kafscale.cluster.coordinator.partitioning import coordinator_partition
from kafscale.cluster.transactions.coordinators import TransactionCoordinators
from kafscale.cluster.transactions.questions import TransactionFilter
from kafscale.cluster.transactions.requests import EndTransaction, Identity
from kafscale.cluster.transactions.settings import TransactionSettings
from kafscale.cluster.transactions.states import STATES_BY_NAME, TransactionState
from kafscale.cluster.transactions.transaction import Transaction
from kafscale.cluster.transactions.values import StateRecord, TopicPartition
from kafscale.errors import KafkaError
from kafscale.wire import error_codes as e
from kafscale.wire.internal_topics.transaction_state import PartitionsSchema

NOW = 100_000


def record(transactional_id: str, state: TransactionState, producer_id: int = 7, start_ms: int = 40_000) -> StateRecord:
    is_open = state is TransactionState.ONGOING or state.is_prepared
    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=3,
        timeout_ms=90_000,
        state=state,
        partitions=frozenset({TopicPartition("t", 1), TopicPartition("t", 0)}) if is_open else frozenset(),
        start_timestamp_ms=start_ms,
        last_update_timestamp_ms=40_000,
    ).record()


@pytest.fixture
def coordinators() -> TransactionCoordinators:
    return TransactionCoordinators(
        partition_count=4, settings=TransactionSettings(), leads=lambda partition: partition.partition == 0
    )


def load(coordinators: TransactionCoordinators, *records: StateRecord, epoch: int = 1) -> None:
    """Lead all partitions, with these records in them."""
    for partition in range(coordinators.partition_count):
        loading = coordinators.begin_loading(partition, epoch)
        for each in records:
            if coordinators.partition_of(each.transactional_id) == partition:
                loading.apply(each)
        assert coordinators.finish_loading(loading) is not None


def code_of_finding(coordinators: TransactionCoordinators, transactional_id: str) -> int:
    with pytest.raises(KafkaError) as caught:
        coordinators.find(transactional_id)
    return caught.value.code


def test_an_id_is_found_where_its_partition_is_led_and_loaded(coordinators: TransactionCoordinators) -> None:
    partition = coordinator_partition("x", 4)
    assert code_of_finding(coordinators, "x") == e.NOT_COORDINATOR
    loading = coordinators.begin_loading(partition, 5)
    assert code_of_finding(coordinators, "x") == e.COORDINATOR_LOAD_IN_PROGRESS
    coordinator = coordinators.finish_loading(loading)
    assert coordinator is not None
    assert coordinators.find("x") is coordinator
    assert (coordinator.partition, coordinator.coordinator_epoch) == (partition, 5)
    coordinators.resign(partition)
    assert coordinator.is_resigned
    assert code_of_finding(coordinators, "x") == e.NOT_COORDINATOR


def test_a_loading_that_was_overtaken_comes_to_nothing(coordinators: TransactionCoordinators) -> None:
    first = coordinators.begin_loading(0, 1)
    second = coordinators.begin_loading(0, 2)
    assert coordinators.finish_loading(first) is None
    coordinators.resign(0)
    assert coordinators.finish_loading(second) is None
    assert list(coordinators) == []


def test_the_last_record_of_an_id_counts_and_a_tombstone_forgets_it(coordinators: TransactionCoordinators) -> None:
    load(
        coordinators,
        record("x", TransactionState.ONGOING),
        record("x", TransactionState.COMPLETE_ABORT),
        record("gone", TransactionState.EMPTY),
        StateRecord("gone", None),
    )
    assert coordinators.describe("x").state == "CompleteAbort"
    assert coordinators.describe("gone").error_code == e.TRANSACTIONAL_ID_NOT_FOUND
    assert coordinators.places.count == 1


def test_a_dead_record_is_a_tombstone_and_an_unknown_state_is_no_record(coordinators: TransactionCoordinators) -> None:
    value = record("x", TransactionState.EMPTY).value
    assert value is not None
    loading = coordinators.begin_loading(0, 1)
    loading.apply(StateRecord("x", value))
    loading.apply(StateRecord("x", attrs.evolve(value, transaction_status=TransactionState.DEAD)))
    assert list(loading.transactions) == []
    with pytest.raises(ValueError, match="9"):
        loading.apply(StateRecord("x", attrs.evolve(value, transaction_status=9)))


def test_more_ids_than_there_may_be_are_loaded_all_the_same() -> None:
    coordinators = TransactionCoordinators(
        partition_count=1, settings=TransactionSettings(max_transactional_id_count=1), leads=lambda _: True
    )
    load(coordinators, *(record(f"{each}", TransactionState.EMPTY) for each in range(3)))
    assert coordinators.places.count == 3
    assert coordinators.places.is_full


def test_a_description_has_all_that_kafka_says(coordinators: TransactionCoordinators) -> None:
    load(coordinators, record("x", TransactionState.ONGOING))
    described = coordinators.describe("x")
    assert attrs.astuple(described, recurse=False) == (
        "x",
        e.NONE,
        "Ongoing",
        90_000,
        40_000,
        7,
        3,
        [PartitionsSchema("t", [0, 1])],
    )


def test_a_prepared_transaction_is_described_with_the_partitions_that_lack_a_marker(
    coordinators: TransactionCoordinators,
) -> None:
    load(coordinators, record("x", TransactionState.ONGOING))
    coordinator = coordinators.find("x")
    request = EndTransaction(identity=Identity("x", 7, 3), committed=True, transaction_version=2)
    outcome = coordinator.end_transaction(request, now_ms=NOW)
    described = coordinators.describe("x")
    assert (described.state, described.topics) == ("PrepareCommit", [PartitionsSchema("t", [1])])
    assert not coordinators.is_settled
    coordinator.done(outcome)
    assert coordinators.is_settled


def test_descriptions_of_ids_that_can_not_be_described(coordinators: TransactionCoordinators) -> None:
    assert coordinators.describe("x").error_code == e.NOT_COORDINATOR
    assert coordinators.describe("").error_code == e.INVALID_REQUEST
    coordinators.begin_loading(coordinators.partition_of("x"), 1)
    assert coordinators.describe("x").error_code == e.COORDINATOR_LOAD_IN_PROGRESS


FILTERS = [
    (TransactionFilter(), ["a", "b", "c"]),
    (TransactionFilter(producer_ids=frozenset({1, 3})), ["a", "c"]),
    (TransactionFilter(state_names=frozenset({"Ongoing"})), ["a", "b"]),
    (TransactionFilter(state_names=frozenset({"ongoing"})), []),
    (TransactionFilter(state_names=frozenset({"Ongoing"}), producer_ids=frozenset({2})), ["b"]),
    (TransactionFilter(longer_than_ms=NOW - 40_000), ["b", "c"]),
    (TransactionFilter(longer_than_ms=NOW - 40_001), ["a", "b", "c"]),
    (TransactionFilter(longer_than_ms=0), ["a", "b", "c"]),
]


@pytest.mark.parametrize(("wanted", "expected"), FILTERS)
def test_what_is_listed_fits_every_filter(
    coordinators: TransactionCoordinators, wanted: TransactionFilter, expected: list[str]
) -> None:
    load(
        coordinators,
        record("c", TransactionState.EMPTY, 3, start_ms=-1),
        record("b", TransactionState.ONGOING, 2, start_ms=39_999),
        record("a", TransactionState.ONGOING, 1),
    )
    listing = coordinators.list(wanted, now_ms=NOW)
    assert [each.transactional_id for each in listing.transactions] == expected
    assert listing.error_code == e.NONE
    assert listing.unknown_state_names == wanted.state_names - STATES_BY_NAME.keys()


def test_nothing_is_listed_while_a_partition_is_being_loaded(coordinators: TransactionCoordinators) -> None:
    coordinators.begin_loading(0, 1)
    assert coordinators.list(TransactionFilter(), now_ms=NOW).error_code == e.COORDINATOR_LOAD_IN_PROGRESS


def test_the_next_timer_is_the_first_of_all_partitions(coordinators: TransactionCoordinators) -> None:
    assert coordinators.next_due_ms() is None
    load(coordinators, record("a", TransactionState.ONGOING), record("b", TransactionState.ONGOING, start_ms=30_000))
    assert coordinators.next_due_ms() == 30_000 + 90_000 + 1


def test_states_have_the_names_that_kafka_gives_them() -> None:
    assert list(STATES_BY_NAME) == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
