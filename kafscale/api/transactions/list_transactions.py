"""ListTransactions (66): the transactional ids that this broker coordinates (KIP-664).

v1  only transactions that have been open for longer than a number of milliseconds (KIP-994)
v2  only ids that fit a regular expression of RE2, as a whole (KIP-1152)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.cluster.patterns import InvalidPattern, Pattern, Piece, compile_pattern
from kafscale.cluster.transactions.questions import ListFilter, list_transactions
from kafscale.cluster.transactions.state_records import now_ms
from kafscale.cluster.transactions.transaction import ProducerTransaction
from kafscale.concurrency.metering import run_in_thread
from kafscale.concurrency.turns import in_turns
from kafscale.errors import KafkaError
from kafscale.security.acls import DESCRIBE_TRANSACTION
from kafscale.wire.error_codes import INVALID_REGULAR_EXPRESSION
from kafscale.wire.messages.transactions import (
    ListedTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
)


async def handle(services: Services, call: Call, request: ListTransactionsRequest) -> ListTransactionsResponse:
    wanted = ListFilter(
        producer_ids=frozenset(request.producer_id_filters),
        state_names=frozenset(request.state_filters),
        longer_than_ms=request.duration_filter,
    )
    try:
        await services.transactions.wait_settled()
        listed = list_transactions(services.transactions.led, wanted, now_ms=now_ms())
        listed = await _visible(services, call, listed)
        pattern = request.transactional_id_pattern
        if pattern and (listed or services.access.allows_some(call, DESCRIBE_TRANSACTION)):
            listed = await _matching(services, _compile(pattern), listed)
    except KafkaError as exc:
        return ListTransactionsResponse(error_code=exc.code)
    return ListTransactionsResponse(
        unknown_state_filters=sorted(wanted.unknown_state_names),
        transaction_states=[
            ListedTransactionState(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state.kafka_name,
            )
            async for transaction in in_turns(listed)
        ],
    )


def _compile(text: str) -> Pattern:
    """Return the compiled expression. Raises KafkaError INVALID_REGULAR_EXPRESSION."""
    try:
        return compile_pattern(text)
    except InvalidPattern as exc:
        raise KafkaError(
            INVALID_REGULAR_EXPRESSION, f"Transaction ID pattern `{text}` is not a valid regular expression: {exc}."
        ) from exc


async def _visible(services: Services, call: Call, found: Iterable[ProducerTransaction]) -> list[ProducerTransaction]:
    allows = services.access.allows
    return [
        transaction
        async for transaction in in_turns(found)
        if allows(call, DESCRIBE_TRANSACTION, transaction.transactional_id, tells=False)
    ]


async def _matching(
    services: Services, pattern: Pattern, listed: Sequence[ProducerTransaction]
) -> list[ProducerTransaction]:
    """Return those whose ids fit as a whole. Connections take turns in one thread."""
    matching: list[ProducerTransaction] = []
    for start in range(0, len(listed), pattern.piece_count):
        several = listed[start : start + pattern.piece_count]
        piece = Piece(pattern, [transaction.transactional_id for transaction in several])
        await run_in_thread(piece.run, limiter=services.pattern_thread)
        matching += [transaction for transaction in several if transaction.transactional_id in piece.matched]
    return matching


API = Api(66, "ListTransactions", 0, 2, ListTransactionsRequest, ListTransactionsResponse, handle)
