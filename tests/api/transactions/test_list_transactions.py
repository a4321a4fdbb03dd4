from __future__ import annotations

from types import SimpleNamespace

import trio

from kafscale.api.transactions.list_transactions import API, MATCHES_PER_TURN
from kafscale.cluster.transactions.questions import ListedTransaction, TransactionListing
from kafscale.wire.messages.list_transactions import ListTransactionsRequest
from tests.devtools.handlers import ask, some_services

IDS_COUNT = 1_000


async def test_others_are_served_while_ids_are_held_against_an_expression(nursery: trio.Nursery) -> None:
    """An id of the longest may take milliseconds, and there may be 100,000: minutes of the event loop."""
    listed = tuple(
        ListedTransaction(transactional_id=f"id-{number}", producer_id=number, state="Empty")
        for number in range(IDS_COUNT)
    )
    coordinators = SimpleNamespace(list=lambda wanted, now_ms: TransactionListing(transactions=listed))
    transactions = SimpleNamespace(wait_settled=trio.lowlevel.checkpoint, coordinators=coordinators)
    turns_count = 0

    async def be_served() -> None:
        nonlocal turns_count
        while True:
            await trio.lowlevel.checkpoint()
            turns_count += 1

    nursery.start_soon(be_served)
    request = ListTransactionsRequest(transactional_id_pattern="id-[0-9]7")
    response = await ask(API, some_services(transactions=transactions), request)
    assert [each.transactional_id for each in response.transaction_states] == [f"id-{ten}7" for ten in range(1, 10)]
    assert turns_count >= IDS_COUNT // MATCHES_PER_TURN - 1  # none behind the last
