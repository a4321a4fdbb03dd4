from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from kafscale.api.topics.delete_topics import API
from kafscale.cluster.registries.topics import NewTopic, TopicRegistry
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.messages.topics import DeleteTopicsRequest, DeleteTopicState
from tests.api.handlers import ask, some_services

UNKNOWN_ID = b"x" * 16


@pytest.fixture
async def services() -> Any:
    topics = TopicRegistry(store=MemoryMetadataStore())
    await topics.create([NewTopic(name="a"), NewTopic(name="b")])
    return some_services(topics=topics)


def names(services: Any) -> list[str]:
    return [topic.name for topic in services.topics.all()]


@pytest.mark.parametrize("version", range(1, 6))
async def test_by_name_in_the_older_versions(services: Any, version: int) -> None:
    request = DeleteTopicsRequest(topic_names=["a", "nope", "b", "b"], timeout_ms=1000)
    response = await ask(API, services, request, version=version)
    assert [(result.name, result.error_code) for result in response.responses] == [
        ("a", 0),
        ("nope", error_codes.UNKNOWN_TOPIC_OR_PARTITION),
        ("b", error_codes.INVALID_REQUEST),
    ]
    assert response.responses[2].error_message == ("Duplicate topic name." if version >= 5 else None)
    assert names(services) == ["b"]


async def test_by_name_or_id(services: Any) -> None:
    a, b = services.topics.get("a"), services.topics.get("b")
    asked = [DeleteTopicState(name="a"), DeleteTopicState(topic_id=b.topic_id), DeleteTopicState(topic_id=UNKNOWN_ID)]
    response = await ask(API, services, DeleteTopicsRequest(topics=asked, timeout_ms=1000))
    assert [(result.name, result.topic_id, result.error_code) for result in response.responses] == [
        ("a", a.topic_id, 0),
        ("b", b.topic_id, 0),
        (None, UNKNOWN_ID, error_codes.UNKNOWN_TOPIC_ID),
    ]
    assert names(services) == []


async def test_requests_that_make_no_sense(services: Any) -> None:
    a, b = services.topics.get("a"), services.topics.get("b")
    asked = [
        DeleteTopicState(),
        DeleteTopicState(name="a", topic_id=a.topic_id),
        DeleteTopicState(topic_id=UNKNOWN_ID),
        DeleteTopicState(topic_id=UNKNOWN_ID),
        DeleteTopicState(topic_id=b.topic_id),
        DeleteTopicState(name="b"),
    ]
    response = await ask(API, services, DeleteTopicsRequest(topics=asked, timeout_ms=1000))
    assert [(result.error_code, result.error_message) for result in response.responses] == [
        (error_codes.INVALID_REQUEST, "Neither topic name nor id were specified."),
        (error_codes.INVALID_REQUEST, "You may not specify both topic name and topic id."),
        (error_codes.INVALID_REQUEST, "Duplicate topic id."),
        (error_codes.NONE, None),
        (error_codes.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied."),
    ]


async def test_an_id_does_not_stand_for_a_later_topic_of_the_same_name(autojump_clock: MockClock) -> None:
    store = MemoryMetadataStore()
    services = some_services(topics=TopicRegistry(store=store))
    topics = services.topics
    await topics.create([NewTopic(name="a")])
    request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topics.get("a").topic_id)], timeout_ms=1000)
    store.gate = trio.Event()
    responses = []

    async def delete_by_id() -> None:
        responses.append(await ask(API, services, request))

    async with trio.open_nursery() as nursery:
        # Each begins when the one before is on its way, or waits for it.
        for step in (lambda: topics.delete(["a"]), lambda: topics.create([NewTopic(name="a")]), delete_by_id):
            nursery.start_soon(step)
            await trio.testing.wait_all_tasks_blocked()
        store.gate.set()
    assert [each.error_code for each in responses[0].responses] == [error_codes.UNKNOWN_TOPIC_ID]
    assert names(services) == ["a"]
