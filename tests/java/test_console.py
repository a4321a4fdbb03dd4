"""The console's pages on Apache Kafka: it is a client of any cluster."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
import trio
from confluent_kafka import Consumer, Producer

from bench.peers.kafka import KafkaBroker
from kafscale.config import Address
from kafscale.console.pages.base import NAVIGATION
from kafscale.console.settings import ConsoleSettings
from tests.console.browsing import browsing, send

pytestmark = pytest.mark.java
RECORDS_COUNT = 20


def test_each_page_shows_apache_kafka(tmp_path: Path) -> None:
    with KafkaBroker("kafka", {}, tmp_path).running() as kafka:
        bootstrap = str(kafka.address)
        trio.run(_create_topic, kafka.address)
        _produce_and_commit(bootstrap)
        found = trio.run(_pages, kafka.address)
    assert {path: status for path, (status, _) in found.items() if status != 200} == {}
    text = {path: page for path, (_, page) in found.items()}
    assert ">orders<" in text["/topics"]
    assert ">billing<" in text["/groups"]
    assert "classic" in text["/groups/one?group=billing"]
    assert "controller" in text["/brokers"]
    assert f'<td class="number">{RECORDS_COUNT}</td>' in text["/topics"]


async def _create_topic(address: Address) -> None:
    async with browsing(ConsoleSettings(bootstrap=[address])) as pages:
        answer = await send(pages, "/topics", name="orders", partitions="2", replication="1", configs="")
        assert answer.status_code == 303, answer.text


def _produce_and_commit(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS_COUNT):
        producer.produce("orders", f"order {number}")
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    assert len(consumer.consume(RECORDS_COUNT, timeout=60)) == RECORDS_COUNT
    consumer.commit(asynchronous=False)
    consumer.close()


async def _pages(address: Address) -> dict[str, tuple[int, str]]:
    """Return status and text of each page with its live parts."""
    found = {}
    async with browsing(ConsoleSettings(bootstrap=[address])) as pages:
        for path in (*(path for path, _ in NAVIGATION), "/topics/orders", "/groups/one?group=billing"):
            page = await pages.get(path)
            parts = [await _get(pages, part) for part in re.findall('data-live="([^"]+)"', page.text)]
            found[path] = (max(part.status_code for part in (page, *parts)), page.text)
    return found


async def _get(pages: httpx.AsyncClient, path: str) -> httpx.Response:
    return await pages.get(path.replace("&amp;", "&"), headers={"x-fragment": "1"})
