"""Pages of transactions, with producers of confluent-kafka."""

from __future__ import annotations

import re

import httpx
import pytest
import trio
from confluent_kafka import KafkaException, Producer

from kafscale.console import problems
from kafscale.console.pages import transactions
from kafscale.testing.background_broker import BackgroundBroker
from tests.console.browsing import csrf_of

SECONDS = 20.0
HOSTILE = "<b>/../x\u202e"


def begin(broker: BackgroundBroker, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("orders", b"v", partition=0)
    assert producer.flush(SECONDS) == 0
    return producer


async def test_an_open_transaction_is_listed_and_aborted(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    kafscale_broker.create_topic("orders")
    producer = await trio.to_thread.run_sync(begin, kafscale_broker, HOSTILE)
    other = await trio.to_thread.run_sync(begin, kafscale_broker, "other")
    await trio.to_thread.run_sync(other.commit_transaction, SECONDS)
    ongoing = (await pages.get("/transactions?state=Ongoing")).text
    (link,) = re.findall(r'href="(/transactions/one\?id=[^"]+)"', ongoing)
    assert "<b>" not in ongoing
    assert "No transactional ids fit" in (await pages.get("/transactions?open=1+hour")).text
    assert "id=other" in (await pages.get("/transactions")).text
    page = await pages.get(link)
    assert "<dd>Ongoing</dd>" in page.text
    assert '<a href="/topics/orders">orders</a></th><td>0</td>' in page.text
    answer = await pages.post(link.replace("/one", "/abort"), data={"csrf_token": csrf_of(page)})
    assert answer.headers["location"] == link
    page = await pages.get(link)
    assert "<dd>Ongoing</dd>" not in page.text
    assert re.search(r'<button class="danger" disabled title="No transaction is open', page.text)
    again = await pages.post(link.replace("/one", "/abort"), data={"csrf_token": csrf_of(page)})
    assert (again.status_code, "INVALID_TXN_STATE" in again.text) == (400, True)
    with pytest.raises(KafkaException):
        await trio.to_thread.run_sync(producer.commit_transaction, SECONDS)


async def test_a_transaction_that_is_open_for_long_is_a_problem(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafscale_broker.create_topic("orders")
    producer = await trio.to_thread.run_sync(begin, kafscale_broker, "slow")
    assert "Nothing is wrong now." in (await pages.get("/")).text
    for module in (problems, transactions):
        monkeypatch.setattr(module, "LONG_MS", 0)
    overview = (await pages.get("/")).text
    assert '<a href="/transactions/one?id=slow">Transaction of slow: open for 0 minutes' in overview
    assert '<span class="badge bad">hangs</span>' in (await pages.get("/transactions")).text
    await trio.to_thread.run_sync(producer.abort_transaction, SECONDS)


async def test_an_unknown_id_is_not_found(pages: httpx.AsyncClient) -> None:
    assert (await pages.get("/transactions/one?id=nope")).status_code == 404
