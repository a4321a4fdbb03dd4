"""The answers of DescribeTransactions and ListTransactions (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

import attrs

from kafscale.cluster.coordinator import LedPartitions
from kafscale.cluster.transactions.coordinator import TransactionCoordinator
from kafscale.cluster.transactions.requests import Held
from kafscale.cluster.transactions.transaction import ProducerTransaction
from kafscale.cluster.transactions.values import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP_MS,
    STATES_BY_NAME,
    TransactionState,
    partitions_by_topic,
)
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import COORDINATOR_LOAD_IN_PROGRESS, INVALID_REQUEST, NONE, TRANSACTIONAL_ID_NOT_FOUND
from kafscale.wire.internal_topics.transaction_state import PartitionsSchema

ANY_DURATION_MS = -1


@attrs.frozen(kw_only=True)
class TransactionDescription:
    """The answer of DescribeTransactions for one transactional id."""

    transactional_id: str
    error_code: int = NONE
    state: str = ""
    timeout_ms: int = 0
    start_timestamp_ms: int = NO_TIMESTAMP_MS
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    topics: list[PartitionsSchema] = attrs.field(factory=list)

    @classmethod
    def of(cls, held: Held) -> TransactionDescription:
        """Describe it; while markers are outstanding, the partitions are those that lack one, as in Kafka."""
        transaction = held.transaction
        partitions = held.outstanding if transaction.state.is_prepared else transaction.partitions
        return cls(
            transactional_id=transaction.transactional_id,
            state=transaction.state.kafka_name,
            timeout_ms=transaction.timeout_ms,
            start_timestamp_ms=transaction.start_timestamp_ms,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            topics=partitions_by_topic(partitions),
        )


@attrs.frozen(kw_only=True)
class ListFilter:
    """The filter of a ListTransactions; by default every transactional id fits."""

    producer_ids: frozenset[int] = frozenset()
    state_names: frozenset[str] = frozenset()
    longer_than_ms: int = ANY_DURATION_MS

    @property
    def unknown_state_names(self) -> frozenset[str]:
        """Return those that no state has; nothing fits them, and the answer names them."""
        return self.state_names - STATES_BY_NAME.keys()

    def fits(self, transaction: ProducerTransaction, now_ms: int) -> bool:
        if transaction.state is TransactionState.DEAD:
            return False
        if self.producer_ids and transaction.producer_id not in self.producer_ids:
            return False
        if self.state_names and transaction.state.kafka_name not in self.state_names:
            return False
        return self.longer_than_ms < 0 or now_ms - transaction.start_timestamp_ms > self.longer_than_ms


@attrs.frozen(kw_only=True)
class ListedTransaction:
    """A transactional id as ListTransactions tells it."""

    transactional_id: str
    producer_id: int
    state: str


@attrs.frozen(kw_only=True)
class TransactionListing:
    """The answer to ListTransactions."""

    error_code: int = NONE
    unknown_state_names: frozenset[str] = frozenset()
    transactions: tuple[ListedTransaction, ...] = ()


def describe_transaction(led: LedPartitions[TransactionCoordinator], transactional_id: str) -> TransactionDescription:
    """Answer for one id of a DescribeTransactions."""
    if not transactional_id:
        return TransactionDescription(transactional_id=transactional_id, error_code=INVALID_REQUEST)
    try:
        held = led.find(transactional_id).get(transactional_id)
    except KafkaError as exc:
        return TransactionDescription(transactional_id=transactional_id, error_code=exc.code)
    if held is None:
        return TransactionDescription(transactional_id=transactional_id, error_code=TRANSACTIONAL_ID_NOT_FOUND)
    return TransactionDescription.of(held)


def list_transactions(
    led: LedPartitions[TransactionCoordinator], wanted: ListFilter, *, now_ms: int
) -> TransactionListing:
    """Answer a ListTransactions: the transactional ids of this broker that fit, in order."""
    if led.is_loading:
        return TransactionListing(error_code=COORDINATOR_LOAD_IN_PROGRESS)
    transactions = [held.transaction for coordinator in led for held in coordinator.held()]
    fitting = [transaction for transaction in transactions if wanted.fits(transaction, now_ms)]
    fitting.sort(key=lambda transaction: transaction.transactional_id)
    listed = (
        ListedTransaction(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            state=transaction.state.kafka_name,
        )
        for transaction in fitting
    )
    return TransactionListing(unknown_state_names=wanted.unknown_state_names, transactions=tuple(listed))
