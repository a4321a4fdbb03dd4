"""DescribeTransactions (65), version 0: the state of transactional ids that this broker coordinates (KIP-664)."""

from __future__ import annotations

from functools import partial

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.cluster.coordinator.partitions import LedPartitions
from kafscale.cluster.transactions.coordinator import TransactionCoordinator
from kafscale.cluster.transactions.values import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP_MS,
    partitions_by_topic,
)
from kafscale.concurrency.turns import distinct, in_turns
from kafscale.errors import KafkaError
from kafscale.security.acls import DESCRIBE_TOPIC
from kafscale.wire.error_codes import INVALID_REQUEST, TRANSACTIONAL_ID_NOT_FOUND
from kafscale.wire.messages.transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionTopicData,
)


async def handle(services: Services, call: Call, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    ids = await distinct(request.transactional_ids, str)
    try:
        await services.transactions.wait_settled()
    except KafkaError as exc:
        states = [DescribedTransaction(transactional_id=name, error_code=exc.code) for name in ids]
    else:
        allows = partial(services.access.allows, call, DESCRIBE_TOPIC, tells=False)
        states = []
        async for name in in_turns(ids):
            state = described_transaction(services.transactions.led, name)
            state.topics = [topic for topic in state.topics if allows(topic.topic)]
            states.append(state)
    return DescribeTransactionsResponse(transaction_states=states)


def described_transaction(led: LedPartitions[TransactionCoordinator], transactional_id: str) -> DescribedTransaction:
    """Describe one id; a prepared transaction has the partitions without a marker."""
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


API = Api(65, "DescribeTransactions", 0, 0, DescribeTransactionsRequest, DescribeTransactionsResponse, handle)
