from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from kafscale.api.transactions import list_transactions
from kafscale.api.transactions.list_transactions import API
from kafscale.cluster.groups.common.patterns import PIECE_MAX_COUNT, compile_pattern
from kafscale.cluster.transactions.coordinator import TransactionCoordinator
from kafscale.cluster.transactions.ledger import Places
from kafscale.cluster.transactions.transaction import ProducerTransaction
from kafscale.cluster.transactions.values import TransactionState
from kafscale.config import Settings
from kafscale.wire.error_codes import NONE
from kafscale.wire.messages.transactions import ListTransactionsRequest
from tests.api.handlers import ask, some_services

IDS_COUNT = 1_000


class Led(list[TransactionCoordinator]):
    """Led partitions that are all loaded."""

    is_loading = False


def transactions(count: int) -> Any:
    coordinator = TransactionCoordinator(
        partition=0, coordinator_epoch=1, settings=Settings(), leads=lambda _: True, places=Places(count)
    )
    coordinator.restore(
        ProducerTransaction(
            transactional_id=f"id-{number}",
            producer_id=number,
            producer_epoch=0,
            timeout_ms=1,
            state=TransactionState.EMPTY,
            last_update_timestamp_ms=0,
        )
        for number in range(count)
    )
    return SimpleNamespace(wait_settled=trio.lowlevel.checkpoint, led=Led([coordinator]))


async def test_others_are_served_while_ids_are_held_against_an_expression(nursery: trio.Nursery) -> None:
    """An id of the longest may take milliseconds, and there may be 100,000: minutes of the event loop."""
    turns_count = 0

    async def be_served() -> None:
        nonlocal turns_count
        while True:
            await trio.lowlevel.checkpoint()
            turns_count += 1

    nursery.start_soon(be_served)
    request = ListTransactionsRequest(transactional_id_pattern="id-[0-9]7")
    response = await ask(API, some_services(transactions=transactions(IDS_COUNT)), request)
    assert [each.transactional_id for each in response.transaction_states] == [f"id-{ten}7" for ten in range(1, 10)]
    assert turns_count >= IDS_COUNT // PIECE_MAX_COUNT


async def test_the_expression_of_a_client_without_rights_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compile_and_note(text: str) -> Any:
        compiled.append(text)
        return compile_pattern(text)

    monkeypatch.setattr(list_transactions, "compile_pattern", compile_and_note)
    visible: set[str] = set()
    access = SimpleNamespace(
        allows=lambda call, right, name, *, tells: name in visible, allows_some=lambda call, right: False
    )
    services = some_services(transactions=transactions(3), access=access)
    response = await ask(API, services, ListTransactionsRequest(transactional_id_pattern="id-("))
    assert (response.error_code, response.transaction_states, compiled) == (NONE, [], [])
    visible.add("id-1")
    response = await ask(API, services, ListTransactionsRequest(transactional_id_pattern="id-."))
    assert [each.transactional_id for each in response.transaction_states] == ["id-1"]
    assert compiled == ["id-."]
