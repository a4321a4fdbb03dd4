"""ListTransactions (66): the transactional ids that this broker coordinates (KIP-664).

v1  only transactions that have been open for longer than a number of milliseconds (KIP-994)
v2  only ids that match a regular expression of RE2 as a whole (KIP-1152)
"""

from __future__ import annotations

from collections.abc import Sequence

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.cluster.coordinator.partitions import LedPartitions
from kafscale.cluster.groups.common.patterns import InvalidPattern, Pattern, Piece, compile_pattern
from kafscale.cluster.transactions.coordinator import TransactionCoordinator
from kafscale.cluster.transactions.transaction import ProducerTransaction
from kafscale.cluster.transactions.values import STATES_BY_NAME, TransactionState, now_ms
from kafscale.concurrency.metering import run_in_thread
from kafscale.concurrency.turns import in_turns
from kafscale.errors import KafkaError
from kafscale.security.acls import DESCRIBE_TRANSACTION
from kafscale.wire.error_codes import COORDINATOR_LOAD_IN_PROGRESS, INVALID_REGULAR_EXPRESSION
from kafscale.wire.messages.transactions import (
    ListedTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
)


async def handle(services: Services, call: Call, request: ListTransactionsRequest) -> ListTransactionsResponse:
    try:
        await services.transactions.wait_settled()
        fitting = fitting_transactions(services.transactions.led, request, now_ms=now_ms())
        listed = [
            transaction
            async for transaction in in_turns(fitting)
            if services.access.allows(call, DESCRIBE_TRANSACTION, transaction.transactional_id, tells=False)
        ]
        pattern = request.transactional_id_pattern
        if pattern and (listed or services.access.allows_some(call, DESCRIBE_TRANSACTION)):
            listed = await _matching(services, _compile(pattern), listed)
    except KafkaError as exc:
        return ListTransactionsResponse(error_code=exc.code)
    return ListTransactionsResponse(
        unknown_state_filters=sorted(set(request.state_filters) - STATES_BY_NAME.keys()),
        transaction_states=[
            ListedTransactionState(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state.kafka_name,
            )
            async for transaction in in_turns(listed)
        ],
    )


def fitting_transactions(
    led: LedPartitions[TransactionCoordinator], request: ListTransactionsRequest, *, now_ms: int
) -> list[ProducerTransaction]:
    """Return the transactions here that fit the filters, by id. Raises KafkaError COORDINATOR_LOAD_IN_PROGRESS."""
    if led.is_loading:
        raise KafkaError(COORDINATOR_LOAD_IN_PROGRESS)
    producer_ids, states = set(request.producer_id_filters), set(request.state_filters)
    longer_than_ms = request.duration_filter  # negative: any duration

    def fits(transaction: ProducerTransaction) -> bool:
        return (
            transaction.state is not TransactionState.DEAD
            and (not producer_ids or transaction.producer_id in producer_ids)
            and (not states or transaction.state.kafka_name in states)
            and (longer_than_ms < 0 or now_ms - transaction.start_timestamp_ms > longer_than_ms)
        )

    transactions = [held.transaction for coordinator in led for held in coordinator if fits(held.transaction)]
    return sorted(transactions, key=lambda transaction: transaction.transactional_id)


def _compile(text: str) -> Pattern:
    try:
        return compile_pattern(text)
    except InvalidPattern as exc:
        raise KafkaError(
            INVALID_REGULAR_EXPRESSION, f"Transaction ID pattern `{text}` is not a valid regular expression: {exc}."
        ) from exc


async def _matching(
    services: Services, pattern: Pattern, listed: Sequence[ProducerTransaction]
) -> list[ProducerTransaction]:
    """Return the transactions whose whole id matches. Connections take turns in one thread."""
    matching: list[ProducerTransaction] = []
    for start in range(0, len(listed), pattern.piece_count):
        several = listed[start : start + pattern.piece_count]
        piece = Piece(pattern, [transaction.transactional_id for transaction in several])
        await run_in_thread(piece.run, limiter=services.pattern_thread)
        matching += [transaction for transaction in several if transaction.transactional_id in piece.matched]
    return matching


API = Api(66, "ListTransactions", 0, 2, ListTransactionsRequest, ListTransactionsResponse, handle)
