"""Pages of groups, with groups of confluent-kafka and kafka-python."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import trio
from confluent_kafka import Consumer, Producer, TopicPartition

from kafscale.testing.background_broker import BackgroundBroker
from kafscale.testing.secured_broker import SecuredBroker
from tests.console.browsing import csrf_of, logged_in

with warnings.catch_warnings():  # it reads its definitions in a deprecated way while it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <(socket|ssl.SSLSocket):ResourceWarning")
SECONDS = 20.0
HOSTILE = "<script>alert(1)</script>/../\u202e&\"'"
FRAGMENT = {"x-fragment": "1"}


def produce(broker: BackgroundBroker, topic: str, count: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=partition, timestamp=1_000_000 + number)
    assert producer.flush(SECONDS) == 0


def commit(broker: BackgroundBroker, group: str, topic: str, *offsets: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    places = [TopicPartition(topic, partition, offset) for partition, offset in enumerate(offsets)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


@contextmanager
def member_of(broker: BackgroundBroker, group: str, topic: str, protocol: str) -> Iterator[Consumer]:
    """A consumer that has joined."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "client.id": "the-client", "group.protocol": protocol})
    consumer.subscribe([topic])
    try:
        for _ in range(200):
            consumer.poll(0.1)
            if consumer.assignment():
                break
        yield consumer
    finally:
        consumer.close()


@pytest.fixture
async def orders(kafscale_broker: BackgroundBroker) -> BackgroundBroker:
    kafscale_broker.create_topic("orders", partitions=2)
    await trio.to_thread.run_sync(produce, kafscale_broker, "orders", 10)
    return kafscale_broker


async def test_the_list_shows_groups_with_their_lag(pages: httpx.AsyncClient, orders: BackgroundBroker) -> None:
    await trio.to_thread.run_sync(commit, orders, "billing", "orders", 4)
    await trio.to_thread.run_sync(commit, orders, "audit", "orders", 9)
    text = (await pages.get("/groups")).text
    rows = re.findall(
        r'group=(\w+)".*?<td>(\w+)</td><td>(\w+)</td><td class="number">(\d+)</td><td class="number">(\d+)<', text
    )
    assert rows == [("audit", "Empty", "classic", "0", "1"), ("billing", "Empty", "classic", "0", "6")]
    assert text.count('<svg class="spark"') == 2
    by_lag = (await pages.get("/groups?sort=lag", headers=FRAGMENT)).text
    assert by_lag.index("group=billing") < by_lag.index("group=audit")
    assert "<html" not in by_lag
    assert "group=audit" not in (await pages.get("/groups?q=BILL")).text
    assert "No groups fit the filter" in (await pages.get("/groups?state=Stable")).text


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_group_shows_its_members_and_positions(
    pages: httpx.AsyncClient, orders: BackgroundBroker, protocol: str
) -> None:
    joined = member_of(orders, "live", "orders", protocol)
    consumer = await trio.to_thread.run_sync(joined.__enter__)
    try:
        text = (await pages.get("/groups/one?group=live")).text
        assert f"<dt>Type</dt><dd>{protocol}</dd>" in text
        assert "<dt>Members</dt><dd>1</dd>" in text
        assert text.count("<td>the-client</td></tr>") == 2
        assert re.search(
            r"<button class=\"danger\" disabled title=\"The group has 1 members; stop them first.\">", text
        )
        position = TopicPartition("orders", 0, 3)
        await trio.to_thread.run_sync(lambda: consumer.commit(offsets=[position], asynchronous=False))
        await trio.sleep(1)  # lags are fresh for 0.9 s
        live = (await pages.get("/groups/one?group=live", headers=FRAGMENT)).text
        assert '<td class="number">3</td><td class="number">10</td><td class="number">7</td><td>the-client</td>' in live
        assert 'role="img"' in live
        assert "Lag over the last hour: now 7 records" in live
    finally:
        await trio.to_thread.run_sync(joined.__exit__, None, None, None)


async def test_a_group_of_kafka_python_is_shown(pages: httpx.AsyncClient, orders: BackgroundBroker) -> None:
    def use() -> None:
        consumer = kafka.KafkaConsumer(bootstrap_servers=orders.bootstrap, group_id="other", enable_auto_commit=False)
        place = kafka.TopicPartition("orders", 0)
        consumer.assign([place])
        consumer.commit({place: kafka.OffsetAndMetadata(2, "", -1)})
        consumer.close()

    await trio.to_thread.run_sync(use)
    assert '<td class="number">8</td>' in (await pages.get("/groups/one?group=other")).text


async def test_a_reset_shows_first_what_it_changes(pages: httpx.AsyncClient, orders: BackgroundBroker) -> None:
    await trio.to_thread.run_sync(commit, orders, "billing", "orders", 4)

    async def preview(query: str) -> list[str]:
        text = (await pages.get(f"/groups/reset?group=billing&{query}")).text
        return re.findall(r'name="offset/orders/\d" value="(\d+)"', text)

    assert await preview("to=earliest") == ["0", "0"]
    assert await preview("to=latest") == ["10", "0"]
    assert await preview("to=time&time=1970-01-01T00:16:40.007") == ["7", "0"]
    assert await preview("to=offset&value=99") == ["10", "0"]
    assert await preview("to=exact&topic=orders") == ["4", "0"]
    page = await pages.get("/groups/reset?group=billing&to=latest")
    assert '<td class="number">+6</td>' in page.text
    assert "<dt>Lag</dt><dd>6</dd>" in (await pages.get("/groups/one?group=billing")).text
    form = {"csrf_token": csrf_of(page), "offset/orders/0": "8", "offset/orders/1": "0"}
    answer = await pages.post("/groups/reset?group=billing", data=form)
    assert answer.headers["location"] == "/groups/one?group=billing"
    await trio.sleep(1)
    assert "<dt>Lag</dt><dd>2</dd>" in (await pages.get(answer.headers["location"])).text
    refused = await pages.post("/groups/reset?group=billing", data={**form, "offset/orders/0": "11"})
    assert (refused.status_code, "the nearest is 10" in refused.text) == (400, True)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("to=offset&value=-1", "is not a number of offset"),
        ("to=time", "is not a time"),
        ("to=x", "is not a known target"),
    ],
)
async def test_a_wrong_position_is_refused(
    pages: httpx.AsyncClient, orders: BackgroundBroker, query: str, message: str
) -> None:
    answer = await pages.get(f"/groups/reset?group=new&topic=orders&{query}")
    assert (answer.status_code, message in answer.text) == (400, True)


async def test_a_hostile_name_is_text_and_can_be_deleted(pages: httpx.AsyncClient, orders: BackgroundBroker) -> None:
    await trio.to_thread.run_sync(commit, orders, HOSTILE, "orders", 4)
    text = (await pages.get("/groups")).text
    assert "<script>alert" not in text
    assert "\u202e" not in text
    (link,) = re.findall(r'href="(/groups/one\?group=[^"]+)"', text)
    page = await pages.get(link.replace("&amp;", "&"))
    assert "<dt>Lag</dt><dd>6</dd>" in page.text
    assert "<script>alert" not in page.text
    answer = await pages.post(link.replace("/one", "/delete"), data={"csrf_token": csrf_of(page)})
    assert answer.headers["location"] == "/groups"
    assert "is deleted" in (await pages.get("/groups")).text
    assert (await pages.get(link)).status_code == 404


@pytest.mark.kafscale(protocol="SASL_PLAINTEXT")
async def test_a_user_sees_the_missing_right(kafscale_secured_broker: SecuredBroker) -> None:
    broker = kafscale_secured_broker
    broker.create_topic("orders")
    broker.add_user("alice", "alice's")
    broker.allow("alice", "describe", group="billing")
    broker.allow("alice", "describe", topic="orders")

    def commit_as_admin() -> None:
        consumer = Consumer({**broker.client_settings("admin"), "group.id": "billing"})
        consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
        consumer.close()

    await trio.to_thread.run_sync(commit_as_admin)
    async with logged_in(broker, "alice", "alice's") as pages:
        page = await pages.get("/groups/one?group=billing")
        assert page.text.count("disabled") == 2
        assert "Needs the ACL Delete on group &#39;billing&#39;." in page.text
        assert "Needs the ACL Read on group &#39;billing&#39;." in page.text
        answer = await pages.post("/groups/delete?group=billing", data={"csrf_token": csrf_of(page)})
        assert (answer.status_code, "GROUP_AUTHORIZATION_FAILED" in answer.text) == (400, True)
    async with logged_in(broker, "admin", broker.client_settings("admin")["sasl.password"]) as pages:
        assert "Needs the ACL" not in (await pages.get("/groups/one?group=billing")).text
