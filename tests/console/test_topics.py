"""The pages of topics, with records and groups of confluent-kafka."""

from __future__ import annotations

import time

import confluent_kafka
import httpx
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from kafscale.client import many
from kafscale.console import topic_facts, topic_list
from kafscale.console.topic_facts import Rates
from kafscale.testing.background_broker import BackgroundBroker
from kafscale.testing.secured_broker import SecuredBroker
from tests.console.browsing import cells, send


def produce(bootstrap: str, topic: str, count: int, *, partition: int = 0) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, value=f"value-{number}", partition=partition)
    producer.flush()


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


async def test_the_list_counts_records_bytes_and_the_lag_of_the_group_furthest_behind(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    kafscale_broker.create_topic("orders", partitions=3)
    kafscale_broker.create_topic("quiet")
    produce(kafscale_broker.bootstrap, "orders", 5)
    produce(kafscale_broker.bootstrap, "orders", 2, partition=2)
    commit(kafscale_broker.bootstrap, "near", "orders", 4)
    commit(kafscale_broker.bootstrap, "far", "orders", 1)
    text = (await pages.get("/topics")).text
    name, partitions, replicas, records, size_shown, _, lag, cost = cells(text, "orders")
    assert (name, partitions, replicas, records, lag) == ("orders", "3", "1", "7", "4")
    assert size_shown.endswith(" B")
    assert cost == "–"  # the store is in memory
    assert cells(text, "quiet")[3:] == ["0", "0 B", "–", "–", "–"]


async def test_deleted_records_do_not_count_as_lag(pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker) -> None:
    """A group behind the log's start had the distance from its own offset."""
    kafscale_broker.create_topic("orders")
    produce(kafscale_broker.bootstrap, "orders", 5)
    commit(kafscale_broker.bootstrap, "far", "orders", 0)
    admin = AdminClient({"bootstrap.servers": kafscale_broker.bootstrap})
    (deleted,) = admin.delete_records([confluent_kafka.TopicPartition("orders", 0, 3)]).values()
    deleted.result(10)
    assert cells((await pages.get("/topics")).text, "orders")[6] == "2"


async def test_topics_are_filtered_and_sorted_by_the_server(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    for name, partitions, count in (("a-one", 2, 3), ("a-two", 1, 9), ("b", 4, 1)):
        kafscale_broker.create_topic(name, partitions=partitions)
        produce(kafscale_broker.bootstrap, name, count)

    async def order(query: str) -> list[str]:
        text = (await pages.get(f"/topics?{query}")).text
        return sorted(
            (name for name in ("a-one", "a-two", "b") if f">{name}<" in text), key=lambda n: text.index(f">{n}<")
        )

    assert await order("") == ["a-one", "a-two", "b"]
    assert await order("q=A-") == ["a-one", "a-two"]
    assert await order("sort=-name") == ["b", "a-two", "a-one"]
    assert await order("sort=-partitions") == ["b", "a-one", "a-two"]
    assert await order("sort=records") == ["b", "a-one", "a-two"]
    assert await order("sort=-bytes&q=a-") == ["a-two", "a-one"]
    assert await order("sort=nonsense&page=-3") == ["a-one", "a-two", "b"]


async def test_internal_topics_are_shown_when_asked_for(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    kafscale_broker.create_topic("orders")
    commit(kafscale_broker.bootstrap, "group", "orders", 0)
    assert "__consumer_offsets" not in (await pages.get("/topics")).text
    assert "__consumer_offsets" in (await pages.get("/topics?internal=1")).text


async def test_ten_thousand_topics_take_a_page_of_fifty_within_a_second(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    """CPU time is measured: another process may take the wall's."""
    admin = AdminClient({"bootstrap.servers": kafscale_broker.bootstrap})
    for start in range(0, 10_000, 2_000):
        topics = [confluent_kafka.admin.NewTopic(f"topic-{number:05}", 1) for number in range(start, start + 2_000)]
        for future in admin.create_topics(topics, request_timeout=60).values():
            future.result()
    await pages.get("/topics")
    began = time.process_time()
    text = (await pages.get("/topics")).text
    assert time.process_time() - began < 1.0
    assert "page 1 of 200" in text
    assert text.count('<th scope="row">') == topic_list.PAGE_COUNT
    assert "topic-09999" in (await pages.get("/topics?q=topic-09999")).text
    assert ">topic-09950<" in (await pages.get("/topics?page=200")).text


async def test_a_live_list_does_not_ask_for_all_topics_each_time(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafscale_broker.create_topic("first")
    monkeypatch.setattr(topic_list, "REST_FACTOR", 1e9)
    await pages.get("/topics")
    kafscale_broker.create_topic("second")
    assert "second" not in (await pages.get("/fragments/topics")).text
    assert "second" in (await pages.get("/topics")).text


async def test_with_too_many_groups_the_list_has_no_lag(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafscale_broker.create_topic("orders")
    for group in ("one", "two"):
        commit(kafscale_broker.bootstrap, group, "orders", 0)
    monkeypatch.setattr(many, "GROUPS_OF_REQUEST_MAX_COUNT", 1)
    assert cells((await pages.get("/topics")).text, "orders")[6] == "0"
    monkeypatch.setattr(topic_facts, "GROUPS_MAX_COUNT", 1)
    assert cells((await pages.get("/topics")).text, "orders")[6] == "–"


async def test_a_topic_is_created_changed_and_deleted(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    admin = AdminClient({"bootstrap.servers": kafscale_broker.bootstrap})
    answer = await send(pages, "/topics", name="orders", partitions="2", configs="retention.ms=1000\n\n")
    assert (answer.status_code, answer.headers["location"]) == (303, "/topics/orders")
    assert "Topic orders was created." in (await pages.get("/topics/orders")).text

    await send(pages, "/topics/orders/partitions", partitions="3")
    await send(pages, "/topics/orders/configs", config="cleanup.policy", value="compact")
    await send(pages, "/topics/orders/configs", config="retention.ms", reset="1")
    assert len(admin.list_topics().topics["orders"].partitions) == 3
    resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
    (future,) = admin.describe_configs([resource]).values()
    configs = future.result()
    assert (configs["cleanup.policy"].value, configs["retention.ms"].value) == ("compact", "604800000")

    refused = await send(pages, "/topics/orders/delete", confirm="order")
    assert refused.status_code == 400
    assert "Type orders to delete this topic." in refused.text
    assert "orders" in admin.list_topics().topics
    assert (await send(pages, "/topics/orders/delete", confirm="orders")).headers["location"] == "/topics"
    assert "orders" not in admin.list_topics().topics
    assert (await pages.get("/topics/orders")).status_code == 404


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/topics", {"name": "<script>alert(1)</script>"}, "INVALID_TOPIC_EXCEPTION"),
        ("/topics", {"name": "fine", "partitions": "many"}, "&#39;many&#39; is not a number of partitions"),
        ("/topics", {"name": "fine", "partitions": "9" * 5000}, "is not a number of partitions"),
        ("/topics", {"name": "fine", "configs": "compact"}, "is not a config"),
        ("/topics/orders/partitions", {"partitions": "1"}, "INVALID_PARTITIONS"),
        ("/topics/orders/configs", {"config": "retention.ms", "value": "long"}, "retention.ms"),
    ],
)
async def test_a_refused_change_says_why_and_leads_back(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker, path: str, fields: dict[str, str], message: str
) -> None:
    kafscale_broker.create_topic("orders", partitions=2)
    pages.headers["referer"] = "http://127.0.0.1:8080//evil.example/topics"
    answer = await send(pages, path, **fields)
    assert answer.status_code == 400
    assert message in answer.text
    assert "<script>alert" not in answer.text
    assert '<a href="/evil.example/topics">Try again</a>' in answer.text


async def test_configs_have_default_source_and_documentation(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    await send(pages, "/topics", name="orders", configs="retention.ms=1000")
    text = (await pages.get("/topics/orders/configs")).text
    rows = [row for row in text.split("<tr>") if '<th scope="row">retention.ms' in row]
    assert '<td class="mono">1000</td><td class="mono">604800000</td><td>topic</td>' in rows[0]
    assert 'class="muted">' in rows[0]  # its documentation
    assert "Restore the default" in rows[0]
    assert text.count("Restore the default") == 1


async def test_partitions_have_leaders_offsets_and_groups(
    pages: httpx.AsyncClient, kafscale_broker: BackgroundBroker
) -> None:
    kafscale_broker.create_topic("orders", partitions=2)
    produce(kafscale_broker.bootstrap, "orders", 6)
    commit(kafscale_broker.bootstrap, "<b>readers</b>", "orders", 2)
    for path in ("/topics/orders", "/fragments/topics/orders"):
        text = (await pages.get(path)).text
        assert cells(text, "0")[4:6] == ["0", "6"]
        assert cells(text, "1")[4:6] == ["0", "0"]
        assert cells(text, "&lt;b&gt;readers&lt;/b&gt;")[1] == "4"
        assert "/groups/%3Cb%3Ereaders%3C%2Fb%3E" in text


async def test_a_topic_that_is_not_there_is_not_found(pages: httpx.AsyncClient) -> None:
    for name in ("missing", "%3Cscript%3E", "a%0Ab", "%E2%80%AE"):
        answer = await pages.get(f"/topics/{name}")
        assert answer.status_code in (400, 404), name
        assert "<script>" not in answer.text
        assert "\u202e" not in answer.text


def test_a_rate_takes_two_samples() -> None:
    now = [0.0]
    rates = Rates(lambda: now[0])
    assert rates.note("a", 100) is None
    now[0] = 0.5
    assert rates.note("a", 200) is None  # too soon
    now[0] = 2.0
    assert rates.note("a", 300) == 100.0
    now[0] = 12.0
    rates.note("a", 1300)
    now[0] = 22.0
    assert rates.note("a", 1300) == 0.0  # of the last period, not of all time
    assert rates.note("a", 5) is None  # it was deleted and created again


@pytest.mark.kafscale(protocol="SASL_PLAINTEXT")
async def test_what_a_user_may_not_do_is_disabled_with_the_missing_acl(
    secured_pages: httpx.AsyncClient, kafscale_secured_broker: SecuredBroker
) -> None:
    kafscale_secured_broker.create_topic("orders")
    kafscale_secured_broker.allow("alice", "describe", "describe-configs", "alter", topic="orders")
    await secured_pages.post("/login", data={"mechanism": "SCRAM-SHA-512", "user": "alice", "password": "alice's"})
    text = (await secured_pages.get("/topics/orders")).text
    assert '<button class="danger" disabled title="Needs the ACL Delete on topic orders.">Delete topic</button>' in text
    assert '<button class="quiet">Add partitions</button>' in text
    text = (await secured_pages.get("/topics/orders/configs")).text
    assert 'disabled title="Needs the ACL AlterConfigs on topic orders.">Set</button>' in text
    assert "Needs the ACL Create on the cluster or the topic" in (await secured_pages.get("/topics")).text
    answer = await send(secured_pages, "/topics/orders/delete", confirm="orders")  # by hand, past the button
    assert answer.status_code == 400
    assert "TOPIC_AUTHORIZATION_FAILED" in answer.text
