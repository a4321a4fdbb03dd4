"""Which coordinator an id has, what loading one makes of the records, and the answers of Describe and List."""

from __future__ import annotations

from unittest.mock import Mock

import attrs
import pytest

from kafscale.api.transactions.describe_transactions import described_transaction
from kafscale.api.transactions.list_transactions import fitting_transactions
from kafscale.cluster.coordinator.entries import InternalLog
from kafscale.cluster.coordinator.partitions import LedPartitions, TopicPartition, coordinator_partition
from kafscale.cluster.transactions.coordinator import TransactionCoordinator
from kafscale.cluster.transactions.ledger import ProducerIdentity
from kafscale.cluster.transactions.service import TransactionService
from kafscale.cluster.transactions.transaction import ProducerTransaction
from kafscale.cluster.transactions.values import STATES_BY_NAME, StateRecord, TransactionState
from kafscale.config import Limits, Settings
from kafscale.errors import KafkaError
from kafscale.wire import error_codes as e
from kafscale.wire.messages.transactions import DescribedTransaction, ListTransactionsRequest, TransactionTopicData

NOW = 100_000


def record(transactional_id: str, state: TransactionState, producer_id: int = 7, start_ms: int = 40_000) -> StateRecord:
    is_open = state is TransactionState.ONGOING or state.is_prepared
    return ProducerTransaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=3,
        timeout_ms=90_000,
        state=state,
        partitions=frozenset({TopicPartition("t", 1), TopicPartition("t", 0)}) if is_open else frozenset(),
        start_timestamp_ms=start_ms,
        last_update_timestamp_ms=40_000,
    ).record()


def transactions(partition_count: int = 4, **settings: int) -> TransactionService:
    """Return coordinators that lead nothing yet, and whose markers for partition 0 could be written here."""

    async def allocate() -> int:
        raise NotImplementedError

    made = TransactionService(
        internal=InternalLog(Mock()),
        settings=Settings(**settings),
        topic="__transaction_state",
        partition_count=lambda: partition_count,
        exists=lambda _: True,
        allocate_producer_id=allocate,
    )
    made.led.on_loaded = TransactionCoordinator.begin
    return made


Led = LedPartitions[TransactionCoordinator]


def topic(*indexes: int) -> TransactionTopicData:
    return TransactionTopicData(topic="t", partitions=list(indexes))


@pytest.fixture
def led() -> Led:
    return transactions().led


def load(led: Led, *records: StateRecord, epoch: int = 1) -> None:
    """Lead all partitions, with these records in them."""
    for partition in range(led.partition_count):
        coordinator = led.begin_loading(partition, epoch)
        coordinator.leads = lambda at: at.partition == 0
        for one in records:
            if led.partition_of(one.transactional_id) == partition:
                coordinator.apply_state(one)
        assert led.finish_loading(coordinator)


def test_a_coordinator_ends_with_the_leadership_of_its_partition(led: Led) -> None:
    index = coordinator_partition("x", 4)
    coordinator = led.begin_loading(index, 5)
    assert led.finish_loading(coordinator)
    assert led.find("x") is coordinator
    assert (coordinator.partition, coordinator.coordinator_epoch) == (index, 5)
    led.resign(index)
    assert coordinator.is_resigned


def test_the_last_record_of_an_id_wins_and_a_tombstone_removes_the_id(led: Led) -> None:
    load(
        led,
        record("x", TransactionState.ONGOING),
        record("x", TransactionState.COMPLETE_ABORT),
        record("gone", TransactionState.EMPTY),
        StateRecord("gone", None),
    )
    assert described_transaction(led, "x").transaction_state == "CompleteAbort"
    assert described_transaction(led, "gone").error_code == e.TRANSACTIONAL_ID_NOT_FOUND
    assert sum(map(len, led)) == 1


def test_a_dead_record_is_a_tombstone_and_an_unknown_state_is_refused(led: Led) -> None:
    value = record("x", TransactionState.EMPTY).value
    assert value is not None
    loading = led.begin_loading(0, 1)
    loading.apply_state(StateRecord("x", value))
    loading.apply_state(StateRecord("x", attrs.evolve(value, transaction_status=TransactionState.DEAD)))
    led.finish_loading(loading)
    assert len(loading) == 0
    with pytest.raises(ValueError, match="9"):
        loading.apply_state(StateRecord("x", attrs.evolve(value, transaction_status=9)))


def test_ids_beyond_the_limit_are_still_loaded() -> None:
    few = transactions(1, limits=Limits(max_transactional_ids_count=1))
    load(few.led, *(record(f"{number}", TransactionState.EMPTY) for number in range(3)))
    assert few.places.count == 3
    assert few.places.is_full


def test_a_description_has_every_field_of_kafka(led: Led) -> None:
    load(led, record("x", TransactionState.ONGOING))
    described = described_transaction(led, "x")
    assert described == DescribedTransaction(
        transactional_id="x",
        transaction_state="Ongoing",
        transaction_timeout_ms=90_000,
        transaction_start_time_ms=40_000,
        producer_id=7,
        producer_epoch=3,
        topics=[topic(0, 1)],
    )


def test_a_prepared_transaction_is_described_with_the_partitions_that_lack_a_marker(
    led: Led,
) -> None:
    load(led, record("x", TransactionState.ONGOING))
    coordinator = led.find("x")
    identity = ProducerIdentity("x", 7, 3)
    outcome = coordinator.end_transaction(identity, committed=True, transaction_version=2, now_ms=NOW)
    described = described_transaction(led, "x")
    assert (described.transaction_state, described.topics) == ("PrepareCommit", [topic(1)])
    assert not coordinator.is_settled
    coordinator.done(outcome)
    assert coordinator.is_settled


def test_descriptions_of_ids_that_can_not_be_described(led: Led) -> None:
    assert described_transaction(led, "x").error_code == e.NOT_COORDINATOR
    assert described_transaction(led, "").error_code == e.INVALID_REQUEST
    led.begin_loading(led.partition_of("x"), 1)
    assert described_transaction(led, "x").error_code == e.COORDINATOR_LOAD_IN_PROGRESS


FILTERS = [
    (ListTransactionsRequest(), ["a", "b", "c"]),
    (ListTransactionsRequest(producer_id_filters=[1, 3]), ["a", "c"]),
    (ListTransactionsRequest(state_filters=["Ongoing"]), ["a", "b"]),
    (ListTransactionsRequest(state_filters=["ongoing"]), []),
    (ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[2]), ["b"]),
    (ListTransactionsRequest(duration_filter=NOW - 40_000), ["b", "c"]),
    (ListTransactionsRequest(duration_filter=NOW - 40_001), ["a", "b", "c"]),
    (ListTransactionsRequest(duration_filter=0), ["a", "b", "c"]),
]


@pytest.mark.parametrize(("wanted", "expected"), FILTERS)
def test_listed_transactions_match_every_filter(led: Led, wanted: ListTransactionsRequest, expected: list[str]) -> None:
    load(
        led,
        record("c", TransactionState.EMPTY, 3, start_ms=-1),
        record("b", TransactionState.ONGOING, 2, start_ms=39_999),
        record("a", TransactionState.ONGOING, 1),
    )
    listed = fitting_transactions(led, wanted, now_ms=NOW)
    assert [transaction.transactional_id for transaction in listed] == expected


def test_nothing_is_listed_while_a_partition_is_being_loaded(led: Led) -> None:
    led.begin_loading(0, 1)
    with pytest.raises(KafkaError) as caught:
        fitting_transactions(led, ListTransactionsRequest(), now_ms=NOW)
    assert caught.value.code == e.COORDINATOR_LOAD_IN_PROGRESS


def test_states_have_the_names_used_by_kafka() -> None:
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
