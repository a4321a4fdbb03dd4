"""The answers of DescribeTransactions and ListTransactions (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

import attrs

from kafscale.cluster.coordinator import LedPartitions
from kafscale.cluster.transactions.coordinator import TransactionCoordinator
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
from kafscale.wire.error_codes import COORDINATOR_LOAD_IN_PROGRESS, INVALID_REQUEST, TRANSACTIONAL_ID_NOT_FOUND
from kafscale.wire.messages.transactions import DescribedTransaction, TransactionTopicData

ANY_DURATION_MS = -1


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


def describe_transaction(led: LedPartitions[TransactionCoordinator], transactional_id: str) -> DescribedTransaction:
    """Answer for one id of a DescribeTransactions; a prepared transaction has the partitions that lack a marker."""
    answer = DescribedTransaction(
        transactional_id=transactional_id,
        transaction_start_time_ms=NO_TIMESTAMP_MS,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
    )
    try:
        held = led.find(transactional_id).get(transactional_id) if transactional_id else None
    except KafkaError as exc:
        answer.error_code = exc.code
        return answer
    if held is None:
        answer.error_code = TRANSACTIONAL_ID_NOT_FOUND if transactional_id else INVALID_REQUEST
        return answer
    transaction = held.transaction
    answer.transaction_state = transaction.state.kafka_name
    answer.transaction_timeout_ms = transaction.timeout_ms
    answer.transaction_start_time_ms = transaction.start_timestamp_ms
    answer.producer_id, answer.producer_epoch = transaction.producer_id, transaction.producer_epoch
    partitions = held.outstanding if transaction.state.is_prepared else transaction.partitions
    answer.topics = [
        TransactionTopicData(topic=topic.topic, partitions=topic.partition_ids)
        for topic in partitions_by_topic(partitions)
    ]
    return answer


def list_transactions(
    led: LedPartitions[TransactionCoordinator], wanted: ListFilter, *, now_ms: int
) -> list[ProducerTransaction]:
    """Return the transactions here that fit, in order of their ids. Raises KafkaError COORDINATOR_LOAD_IN_PROGRESS."""
    if led.is_loading:
        raise KafkaError(COORDINATOR_LOAD_IN_PROGRESS)
    transactions = [held.transaction for coordinator in led for held in coordinator.held()]
    fitting = [transaction for transaction in transactions if wanted.fits(transaction, now_ms)]
    return sorted(fitting, key=lambda transaction: transaction.transactional_id)
