"""Pages of brokers, against whole brokers that share a bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import attrs
import httpx
import pytest
import trio

from kafscale.cluster.registries.topics import NewTopic
from kafscale.console.settings import ConsoleSettings
from kafscale.console.web.app import make_app
from tests.cli.loopback_cluster import SOON_SECONDS, LoopbackCluster, loopback_cluster
from tests.console.browsing import csrf_of


@attrs.define
class Two:
    """Two brokers, and a browser on a console of the first."""

    cluster: LoopbackCluster
    pages: httpx.AsyncClient


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    async with loopback_cluster(2, rack="zone-a", broker_session_timeout_seconds=0.6) as cluster:
        await cluster.broker(1).services.topics.create([NewTopic(name="orders", partition_count=6)])
        await cluster.until_led("orders", dict.fromkeys(cluster.members, 3))
        app = make_app(ConsoleSettings(bootstrap=[cluster.address(1)]))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8080") as pages:
            yield Two(cluster, pages)
        await app.state.console.aclose()


async def until(two: Two, path: str, text: str) -> None:
    """Wait until a page shows a text."""
    with trio.fail_after(SOON_SECONDS):
        while text not in (await two.pages.get(path)).text:
            await trio.sleep(0.1)


async def test_brokers_are_listed_drained_and_undrained(two: Two) -> None:
    page = await two.pages.get("/brokers")
    assert page.text.count("<td>zone-a</td>") == 2
    assert page.text.count('<span class="badge">controller</span>') == 1
    assert "No partition moves." in page.text
    form = {"csrf_token": csrf_of(page)}
    answer = await two.pages.post("/brokers/2/drain", data=form)
    assert answer.headers["location"] == "/brokers"
    assert "Broker 2 drains: 3 partitions move to others." in (await two.pages.get("/brokers")).text
    await until(two, "/brokers/2", "The broker is drained.")
    assert '<span class="badge">drained</span>' in (await two.pages.get("/brokers")).text
    await two.cluster.until_led("orders", {1: 6})
    await two.pages.post("/brokers/2/undrain", data=form)
    await two.cluster.until_led("orders", {1: 3, 2: 3})


async def test_a_stopped_broker_is_a_problem_and_is_not_drained(two: Two) -> None:
    form = {"csrf_token": csrf_of(await two.pages.get("/brokers"))}
    await two.cluster.stop(2)
    await until(two, "/brokers", '<span class="bad">stopped</span>')
    assert '<a href="/brokers">Broker 2 is fenced: it does not serve.</a>' in (await two.pages.get("/")).text
    answer = await two.pages.post("/brokers/2/drain", data=form)
    row = (await two.pages.get("/brokers/2")).text
    if "<dt>Leads</dt><dd>0</dd>" not in row:  # others take over after a while
        assert (answer.status_code, "start it first" in answer.text) == (400, True)


async def test_a_broker_shows_its_configs(two: Two) -> None:
    text = (await two.pages.get("/brokers/1")).text
    assert '<th scope="row">log.retention.ms</th>' in text
    assert '<a href="/topics/orders">orders</a></th><td class="number">3</td>' in text
    for unknown in ("7", "x", "9" * 30):
        assert (await two.pages.get(f"/brokers/{unknown}")).status_code == 404


async def test_a_moved_partition_is_balanced_again(two: Two) -> None:
    page = await two.pages.get("/brokers")
    answer = await two.pages.post("/brokers/balance", data={"csrf_token": csrf_of(page)})
    assert answer.headers["location"] == "/brokers"
    assert "0 partitions that were moved by hand may move again." in (await two.pages.get("/brokers")).text
    answer = await two.pages.post("/brokers/cancel", data={"csrf_token": csrf_of(page)})
    assert "The moves are cancelled." in (await two.pages.get("/brokers")).text
