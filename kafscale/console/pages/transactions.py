"""Transactions: the list, those that are open for long, and their abort."""

from __future__ import annotations

from urllib.parse import urlencode

import attrs
from starlette.responses import Response
from starlette.routing import Route

from kafscale.client.transactions import abort_transaction, describe_transaction, list_transactions
from kafscale.console.pages.base import PageRequest, action, view
from kafscale.console.paging import paged
from kafscale.console.problems import LONG_MS, ONGOING, duration_ms
from kafscale.errors import KafkaError
from kafscale.login.failures import failure
from kafscale.wire.error_codes import INVALID_TXN_STATE, TRANSACTIONAL_ID_NOT_FOUND
from kafscale.wire.messages.transactions import DescribedTransaction, ListedTransactionState

STATES = ("Empty", ONGOING, "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
DURATIONS = {"": -1, "1 minute": 60_000, "5 minutes": LONG_MS, "1 hour": 3_600_000}  # that a transaction is open for
PER_PAGE = 25  # each open one is described


@attrs.frozen
class TransactionRow:
    """A transactional id, and details of its transaction if one is open."""

    listed: ListedTransactionState
    detail: DescribedTransaction | None

    @property
    def duration_seconds(self) -> int | None:
        return duration_ms(self.detail) // 1000 if self.detail else None

    @property
    def is_long(self) -> bool:
        return self.detail is not None and duration_ms(self.detail) > LONG_MS


async def transaction_list(page: PageRequest) -> Response:
    client = await page.client()
    parameters = {name: page.argument(name) for name in ("q", "state", "open")}
    listed = await list_transactions(
        client,
        [parameters["state"]] if parameters["state"] in STATES else None,
        longer_than_ms=DURATIONS.get(parameters["open"], -1),
    )
    text = parameters["q"].lower()
    found = [transaction for transaction in listed if text in transaction.transactional_id.lower()]
    pages = paged(found, page.argument("page"), "/transactions", parameters=parameters, per_page=PER_PAGE)
    return page.render(
        "transactions.html",
        rows=[TransactionRow(listed, await _open(page, listed)) for listed in pages.rows],
        pages=pages,
        parameters=parameters,
        states=STATES,
        durations=list(DURATIONS),
    )


async def _open(page: PageRequest, listed: ListedTransactionState) -> DescribedTransaction | None:
    if listed.transaction_state != ONGOING:
        return None
    try:
        described = await describe_transaction(await page.client(), listed.transactional_id)
    except KafkaError as exc:
        if exc.code != TRANSACTIONAL_ID_NOT_FOUND:
            raise
        return None
    return described if described.transaction_state == ONGOING else None


async def one_transaction(page: PageRequest) -> Response:
    described = await describe_transaction(await page.client(), page.argument("id"))
    is_open = described.transaction_state == ONGOING
    return page.render(
        "transaction_live.html" if page.is_fragment else "transaction.html",
        transaction=described,
        duration_seconds=duration_ms(described) // 1000 if is_open else None,
        missing="" if is_open else f"No transaction is open: the state is {described.transaction_state}.",
    )


async def abort(page: PageRequest) -> Response:
    """Abort an open transaction, and fence its producer."""
    client, transactional_id = await page.client(), page.argument("id")
    found = await describe_transaction(client, transactional_id)
    if found.transaction_state != ONGOING:
        text = f"no transaction is open: the state is {found.transaction_state}"
        raise failure(INVALID_TXN_STATE, f"transactional id '{transactional_id}'", text)
    await abort_transaction(client, transactional_id, found.transaction_timeout_ms)
    return page.redirect(
        f"/transactions/one?{urlencode({'id': transactional_id})}", f"The transaction of {transactional_id} is aborted."
    )


ROUTES = [
    Route("/transactions", view(transaction_list)),
    Route("/transactions/one", view(one_transaction)),
    Route("/transactions/abort", action(abort), methods=["POST"]),
]
