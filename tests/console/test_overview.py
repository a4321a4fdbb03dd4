from __future__ import annotations

import httpx

from kafscale.testing.background_broker import BackgroundBroker


async def test_the_overview_counts_brokers_and_topics(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    kafscale_broker.create_topic("orders", partitions=3)
    text = (await pages.get("/")).text
    assert "Nothing is wrong now." in text
    assert "<dt>Partitions</dt><dd>3</dd>" in text


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
