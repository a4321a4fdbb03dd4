"""DescribeTransactions (65), version 0: the state of transactional ids that this broker coordinates (KIP-664)."""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.cluster.transactions.questions import describe_transaction
from kafscale.concurrency.turns import distinct, in_turns
from kafscale.errors import KafkaError
from kafscale.security.acls import DESCRIBE_TOPIC
from kafscale.wire.messages.transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)


async def handle(services: Services, call: Call, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    ids = await distinct(request.transactional_ids, str)
    try:
        await services.transactions.wait_settled()
    except KafkaError as exc:
        states = [DescribedTransaction(transactional_id=name, error_code=exc.code) for name in ids]
    else:
        led = services.transactions.led
        states = [_visible(services, call, describe_transaction(led, name)) async for name in in_turns(ids)]
    return DescribeTransactionsResponse(transaction_states=states)


def _visible(services: Services, call: Call, answer: DescribedTransaction) -> DescribedTransaction:
    allows = services.access.allows
    answer.topics = [topic for topic in answer.topics if allows(call, DESCRIBE_TOPIC, topic.topic, tells=False)]
    return answer


API = Api(65, "DescribeTransactions", 0, 0, DescribeTransactionsRequest, DescribeTransactionsResponse, handle)
