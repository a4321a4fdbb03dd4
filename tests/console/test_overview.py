from __future__ import annotations

import re

import httpx
import trio
from confluent_kafka import Consumer, Producer, TopicPartition

from kafscale.testing.background_broker import BackgroundBroker


async def test_the_overview_counts_brokers_and_topics(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    kafscale_broker.create_topic("orders", partitions=3)
    text = (await pages.get("/")).text
    assert "Nothing is wrong now." in text
    assert "<dt>Partitions</dt><dd>3</dd>" in text


async def test_the_overview_plots_throughput_and_names_lagging_groups(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    kafscale_broker.create_topic("orders")
    producer = Producer({"bootstrap.servers": kafscale_broker.bootstrap})
    consumer = Consumer({"bootstrap.servers": kafscale_broker.bootstrap, "group.id": "billing"})

    def use() -> None:
        for _ in range(100):
            producer.produce("orders", b"v")
        assert producer.flush(20.0) == 0
        consumer.commit(offsets=[TopicPartition("orders", 0, 30)], asynchronous=False)
        consumer.close()

    assert "All topics: no samples in the last hour." in (await pages.get("/")).text
    await trio.to_thread.run_sync(use)
    await trio.sleep(1)  # ends are fresh for 0.9 s
    text = (await pages.get("/", headers={"x-fragment": "1"})).text
    assert "<html" not in text
    assert re.search(r"All topics over the last hour: now [1-9][0-9.]* records/s", text)
    assert re.search(r'>orders</a></th><td class="number">[0-9.]+/s</td><td><svg class="spark"', text)
    assert 'href="/groups/one?group=billing">billing</a></th><td class="number">70</td>' in text


async def test_pages_name_a_broker_that_is_gone_and_show_it_when_it_is_back(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    assert (await pages.get("/")).status_code == 200
    kafscale_broker.stop()
    answer = await pages.get("/")
    assert answer.status_code == 503
    assert "The cluster does not answer" in answer.text
    assert kafscale_broker.bootstrap in answer.text
    kafscale_broker.start()
    assert (await pages.get("/")).status_code == 200
