"""Internal topics: made when they are needed, as coordinators need them, and closed to clients."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from kafscale.api.cluster.metadata import API as METADATA
from kafscale.api.handling.coordinators import ensure_internal_topic
from kafscale.client.connection import Connection
from kafscale.cluster.registries.topics import MorePartitions, NewConfigs, NewTopic, TopicRegistry
from kafscale.config import Limits, Settings
from kafscale.errors import KafkaError
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.messages.records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.messages.topics import MetadataRequest, MetadataRequestTopic
from kafscale.wire.records import Record, build_batch
from tests.api.handlers import ask, some_services
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts, memory_settings

OFFSETS, STATE = "__consumer_offsets", "__transaction_state"
BOTH = pytest.mark.parametrize("name", [OFFSETS, STATE])


def some_topics(**limits: Any) -> Any:
    topics = TopicRegistry(store=MemoryMetadataStore(), settings=Settings(limits=Limits(**limits)))
    return some_services(topics=topics)


@pytest.mark.parametrize(("name", "count"), [(OFFSETS, 7), (STATE, 9)])
async def test_concurrent_calls_create_an_internal_topic_once_with_configured_partitions(name: str, count: int) -> None:
    settings = Settings(offsets_topic_partitions_count=7, transaction_state_partitions_count=9)
    services = some_services(topics=TopicRegistry(store=MemoryMetadataStore(), settings=settings))
    found = []

    async def ensure() -> None:
        found.append(await ensure_internal_topic(services, name))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ensure)
    assert len({topic.topic_id for topic in found}) == 1
    assert (found[0].partition_count, found[0].config.cleanup_policy) == (count, ("compact",))


@BOTH
async def test_by_default_there_are_as_many_partitions_as_in_kafka(name: str) -> None:
    topic = await ensure_internal_topic(some_topics(), name)
    assert topic is not None
    assert topic.partition_count == 50


async def test_an_internal_topic_without_compaction_is_set_to_compact() -> None:
    services = some_topics()
    await services.topics.create([NewTopic(name="other"), NewTopic(name=STATE, overrides={"cleanup.policy": "delete"})])
    assert services.topics.get(STATE).config.cleanup_policy == ("compact",)
    (outcome,) = await services.topics.alter([_with_policy(STATE, "delete")])
    assert outcome.config.cleanup_policy == ("delete",)
    topic = await ensure_internal_topic(services, STATE)
    assert topic is not None
    assert topic.config.cleanup_policy == ("compact",)
    assert services.topics.get("other").config.cleanup_policy == ("delete",)


def _with_policy(name: str, policy: str) -> NewConfigs:
    return NewConfigs(name=name, overrides=lambda overrides: {**overrides, "cleanup.policy": policy})


async def test_without_room_for_its_partitions_there_is_none(caplog: pytest.LogCaptureFixture) -> None:
    assert await ensure_internal_topic(some_topics(max_partitions_count=49), STATE) is None
    assert "can't be created" in caplog.text


@BOTH
async def test_clients_can_neither_delete_one_nor_add_partitions(name: str) -> None:
    services = some_topics()
    await ensure_internal_topic(services, name)
    outcomes = [
        *await services.topics.delete([name]),
        *await services.topics.create_partitions([MorePartitions(name=name, partition_count=60)]),
    ]
    assert [isinstance(each, KafkaError) and each.code for each in outcomes] == [error_codes.INVALID_REQUEST] * 2
    assert services.topics.get(name).partition_count == 50


async def test_metadata_marks_internal_topics() -> None:
    async with memory_broker(memory_parts(), memory_settings(offsets_topic_partitions_count=3)) as running:
        services = running.broker.services
        await ensure_internal_topic(services, OFFSETS)
        request = MetadataRequest(topics=[MetadataRequestTopic(name=OFFSETS)])
        (topic,) = (await ask(METADATA, services, request)).topics
        assert (topic.name, topic.is_internal, len(topic.partitions)) == (OFFSETS, True, 3)


async def _produce(client: Connection, name: str) -> tuple[int, str | None]:
    batch = memoryview(build_batch([Record(key=b"k", value=b"v")]))
    topic = TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=batch)])
    request = ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[topic])
    (answer,) = (await client.request(request, ProduceResponse)).responses[0].partition_responses
    return answer.error_code, answer.error_message


@BOTH
async def test_produce_and_delete_records_are_refused_on_internal_topics(
    autojump_clock: trio.testing.MockClock, name: str
) -> None:
    async with memory_broker(memory_parts()) as running:
        await ensure_internal_topic(running.broker.services, name)
        client = await running.connect()
        for client_id in ("somebody", "__admin_client"):
            client.client_id = client_id
            refusal = f"Cannot append to internal topic {name}"
            assert await _produce(client, name) == (error_codes.INVALID_TOPIC_EXCEPTION, refusal)
        topic = DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition(partition_index=0, offset=-1)])
        response = await client.request(DeleteRecordsRequest(topics=[topic], timeout_ms=1_000), DeleteRecordsResponse)
        assert response.topics[0].partitions[0].error_code == error_codes.INVALID_TOPIC_EXCEPTION
        partition = running.broker.services.log.partition_named(name, 0)
        assert partition is not None
        assert partition.next_offset == 0
