"""ListTransactions (66): the transactional ids that this broker coordinates (KIP-664).

v1  only what has been open for longer than so many milliseconds (KIP-994)
v2  only ids that fit a regular expression of RE2, as a whole (KIP-1152)
"""

from __future__ import annotations

from collections.abc import Callable

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.cluster.coordination.state_records import now_ms
from kafscale.cluster.groups.consumer.events import Refused
from kafscale.cluster.groups.consumer.regexes import compile_regex
from kafscale.cluster.transactions.questions import TransactionFilter
from kafscale.concurrency.turns import in_turns
from kafscale.errors import KafkaError
from kafscale.security.rights import DESCRIBE_TRANSACTION
from kafscale.wire.error_codes import INVALID_REGULAR_EXPRESSION
from kafscale.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)


async def handle(services: Services, call: Call, request: ListTransactionsRequest) -> ListTransactionsResponse:
    try:
        wanted = TransactionFilter(
            producer_ids=frozenset(request.producer_id_filters),
            state_names=frozenset(request.state_filters),
            longer_than_ms=request.duration_filter,
            names=_matcher(request.transactional_id_pattern),
        )
        await services.transactions.wait_settled()
    except KafkaError as exc:
        return ListTransactionsResponse(error_code=exc.code)
    found = services.transactions.coordinators.list(wanted, now_ms=now_ms())
    return ListTransactionsResponse(
        error_code=found.error_code,
        unknown_state_filters=sorted(found.unknown_state_names),
        transaction_states=[
            TransactionState(
                transactional_id=each.transactional_id, producer_id=each.producer_id, transaction_state=each.state
            )
            async for each in in_turns(found.transactions)
            if services.access.allows(call, DESCRIBE_TRANSACTION, each.transactional_id, tells=False)
        ],
    )


def _matcher(pattern: str | None) -> Callable[[str], bool] | None:
    """Raises KafkaError INVALID_REGULAR_EXPRESSION."""
    if not pattern:
        return None
    try:
        compiled = compile_regex(pattern)
    except Refused as exc:
        raise KafkaError(INVALID_REGULAR_EXPRESSION, str(exc)) from exc
    return lambda transactional_id: compiled.fullmatch(transactional_id) is not None


API = Api(66, "ListTransactions", 0, 2, ListTransactionsRequest, ListTransactionsResponse, handle)
