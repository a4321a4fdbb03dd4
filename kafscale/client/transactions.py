"""Transactional ids and their transactions (KIP-664)."""

from __future__ import annotations

from kafscale.client.client import Client
from kafscale.client.retrying import retried
from kafscale.login.failures import check
from kafscale.wire.messages.transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListedTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
)


@retried
async def list_transactions(
    client: Client, states: list[str] | None = None, *, longer_than_ms: int = -1
) -> list[ListedTransactionState]:
    """List the transactional ids of all brokers, or those in `states`, or open for longer than a time (which brokers
    before ListTransactions 1 ignore). Raises KafkaError, BrokerUnavailable.
    """
    await client.metadata([])
    found = []
    for connection in await client.all_connections():
        request = ListTransactionsRequest(state_filters=states or [], duration_filter=longer_than_ms)
        response = await connection.request(request, ListTransactionsResponse)
        check(response.error_code, f"transactions of {connection.address}")
        found += response.transaction_states
    return sorted(found, key=lambda each: each.transactional_id)


@retried
async def describe_transaction(client: Client, transactional_id: str) -> DescribedTransaction:
    """Return the state of one id. Raises KafkaError (TRANSACTIONAL_ID_NOT_FOUND too), BrokerUnavailable."""
    connection = await client.transaction_coordinator(transactional_id)
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    (found,) = (await connection.request(request, DescribeTransactionsResponse)).transaction_states
    check(found.error_code, f"transactional id '{transactional_id}'")
    return found


@retried
async def abort_transaction(client: Client, transactional_id: str, timeout_ms: int) -> None:
    """Abort the open transaction by fencing its producer, like Kafka. Raises KafkaError, BrokerUnavailable."""
    connection = await client.transaction_coordinator(transactional_id)
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    response = await connection.request(request, InitProducerIdResponse)
    check(response.error_code, f"transactional id '{transactional_id}'")
