"""Configs of brokers that were set at run time: that they are kept, which holds, and that what they say is in force."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.broker import Broker
from kafscale.client.connection import Connection
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.registries.dynamic_configs import ALL_BROKERS, BrokerConfigs
from kafscale.cluster.registries.topic_configs import BrokerDefaults
from kafscale.cluster.registries.topics import NewConfigs, NewTopic, Topic, TopicListener, TopicRegistry
from kafscale.config import Limits, Settings
from kafscale.errors import KafkaError
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.error_codes import MESSAGE_TOO_LARGE, NONE
from kafscale.wire.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from kafscale.wire.messages.records import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kafscale.wire.records import Record, build_batch
from tests.api.one_topic import TOPIC
from tests.cluster.late_metadata import LateMetadataStore, compete
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts, memory_settings

BACKOFF, MAX_BYTES, RETENTION = "log.cleaner.backoff.ms", "message.max.bytes", "log.retention.ms"
OPTIONS = Settings(broker_id=1)


async def loaded(store: MemoryMetadataStore, options: Settings = OPTIONS) -> BrokerConfigs:
    configs = BrokerConfigs(store, options)
    await configs.load()
    return configs


async def test_broker_configs_survive_a_restart_and_override_cluster_defaults() -> None:
    store = MemoryMetadataStore()
    configs = await loaded(store)
    await configs.alter(1, lambda _: {BACKOFF: "2000"})
    await configs.alter(ALL_BROKERS, lambda _: {BACKOFF: "3000", "max.connections": "77"})
    first, again, second = configs, await loaded(store), await loaded(store, Settings(broker_id=2))
    for each, seconds in ((first, 2.0), (again, 2.0), (second, 3.0)):
        assert each.settings.compaction_check_interval_seconds == seconds
        assert each.settings.limits.max_connections_count == 77
    await configs.alter(1, lambda _: {})
    assert configs.settings.compaction_check_interval_seconds == 3.0
    assert [entry.key for entry in await store.list("broker-configs/")] == ["broker-configs/default"]


async def test_configs_that_conflict_with_broker_options_are_refused_or_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryMetadataStore()
    configs = await loaded(store)
    with pytest.raises(KafkaError, match="log-cleaner-dedupe-buffer"):
        await configs.alter(ALL_BROKERS, lambda _: {"log.cleaner.dedupe.buffer.size": "1"})
    too_small = {"log.cleaner.dedupe.buffer.size": "1", "broker.new": "1", BACKOFF: "soon", "max.connections": "7"}
    await store.commit(Transaction(puts={"broker-configs/1": encode(too_small)}))  # by a later version
    expected = attrs.evolve(OPTIONS, limits=attrs.evolve(OPTIONS.limits, max_connections_count=7))
    assert configs.settings == (await loaded(store)).settings == expected
    assert "log.cleaner.dedupe.buffer.size=1 is not in effect" in caplog.text
    assert "broker.new=1 is not in effect" in caplog.text
    await configs.alter(1, lambda old: {**old, "max.connections": "8"})
    assert (await store.list("broker-configs/1"))[0].value == encode({**too_small, "max.connections": "8"})


async def test_concurrent_changes_by_two_brokers_are_both_kept() -> None:
    store = LateMetadataStore()
    ours, theirs = BrokerConfigs(store, OPTIONS), BrokerConfigs(store, Settings(broker_id=2))
    await compete(
        store,
        lambda: ours.alter(ALL_BROKERS, lambda old: {**old, BACKOFF: "2000"}),
        lambda: theirs.alter(ALL_BROKERS, lambda old: {**old, RETENTION: "9"}),
    )
    for each in (ours, theirs):
        assert each.dynamic.default == {"min.insync.replicas": "1", BACKOFF: "2000", RETENTION: "9"}


# ---- the defaults of topics ------------------------------------------------------------------------------------------


@pytest.fixture
async def topics() -> TopicRegistry:
    topics = TopicRegistry(store=MemoryMetadataStore(), settings=OPTIONS)
    await topics.create([NewTopic(name="own", overrides={"retention.ms": "5"}), NewTopic(name="usual")])
    return topics


async def setting(topics: TopicRegistry, values: Mapping[str, str], options: Settings = OPTIONS) -> BrokerConfigs:
    configs = await loaded(MemoryMetadataStore(), options)
    configs.follow(lambda: topics.use_defaults(BrokerDefaults.of(configs.settings, configs.dynamic)))
    await configs.alter(ALL_BROKERS, lambda _: values)
    return configs


async def test_topics_without_an_override_follow_the_cluster_default(topics: TopicRegistry) -> None:
    changed: list[Topic] = []
    topics.follow(TopicListener(on_changed=changed.append))
    configs = await setting(topics, {RETENTION: "77", "log.cleaner.min.cleanable.ratio": "0.25"})
    own, usual = topics.get("own"), topics.get("usual")
    assert own is not None
    assert usual is not None
    assert (own.config.retention_ms, usual.config.retention_ms) == (5, 77)
    assert own.config.min_cleanable_dirty_ratio == usual.config.min_cleanable_dirty_ratio == 0.25
    assert changed == [own, usual]
    (new,) = await topics.create([NewTopic(name="new")])
    assert isinstance(new, Topic)
    assert new.config.retention_ms == 77
    changed.clear()
    await configs.alter(ALL_BROKERS, lambda _: {RETENTION: "77"})
    assert [topic.config.min_cleanable_dirty_ratio for topic in changed] == [0.5] * 3
    await topics.alter([NewConfigs(name="own", overrides=lambda _: {})])
    assert [topic.config.retention_ms for topic in topics.all()] == [77, 77, 77]


async def test_a_default_changed_during_a_topic_creation_applies_to_the_topic() -> None:
    """The planned transaction has the configs from before."""
    store = LateMetadataStore()
    topics = TopicRegistry(store=store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(topics.create, [NewTopic(name="a")])
        await wait_all_tasks_blocked()
        await setting(topics, {RETENTION: "77"})
        store.tell()
    (topic,) = topics.all()
    assert topic.config.retention_ms == 77


@pytest.mark.parametrize(
    ("values", "overrides", "lags"),
    [
        ({"log.cleaner.max.compaction.lag.ms": "5"}, {"min.compaction.lag.ms": "9"}, (9, 9)),
        ({"log.cleaner.min.compaction.lag.ms": "9"}, {"max.compaction.lag.ms": "5"}, (5, 5)),
        (
            {"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "5"},
            {},
            (5, 5),
        ),
    ],
)
async def test_a_default_that_clashes_with_a_topics_own_config_gives_way(
    topics: TopicRegistry, values: Mapping[str, str], overrides: Mapping[str, str], lags: tuple[int, int]
) -> None:
    """A start would refuse the topic, and with it the broker."""
    await topics.alter([NewConfigs(name="own", overrides=lambda _: overrides)])
    await setting(topics, values)
    topic = topics.get("own")
    assert topic is not None
    assert (topic.config.min_compaction_lag_ms, topic.config.max_compaction_lag_ms) == lags
    again = TopicRegistry(store=topics.store)
    again.use_defaults(topics.defaults)
    await again.load()
    assert again.get("own") == topic


# ---- a whole broker --------------------------------------------------------------------------------------------------


async def produce(connection: Connection, topic: str) -> int:
    batch = build_batch([Record(key=None, value=bytes(2_000), timestamp_ms=1)])
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])]
    request = ProduceRequest(acks=-1, timeout_ms=9_000, topic_data=data)
    answer = await connection.request(request, ProduceResponse)
    return answer.responses[0].partition_responses[0].error_code


async def alter(connection: Connection, name: str, **values: str) -> None:
    configs = [
        IncrementalAlterableConfig(name=each.replace("_", "."), config_operation=0, value=value)
        for each, value in values.items()
    ]
    resource = IncrementalAlterConfigsResource(resource_type=4, resource_name=name, configs=configs)
    answer = await connection.request(
        IncrementalAlterConfigsRequest(resources=[resource]), IncrementalAlterConfigsResponse
    )
    assert [each.error_code for each in answer.responses] == [NONE]


async def test_broker_configs_apply_at_once_and_after_a_restart(autojump_clock: trio.abc.Clock) -> None:
    parts = memory_parts()
    settings = memory_settings(limits=Limits(max_connections_count=100))
    async with memory_broker(parts, settings) as broker:
        await broker.broker.services.topics.create([NewTopic(name=TOPIC)])
        connection = await broker.connect()
        assert await produce(connection, TOPIC) == NONE
        values = {"log_cleaner_backoff_ms": "3000", "log_cleaner_dedupe_buffer_size": str(2 << 20)}
        await alter(connection, "", message_max_bytes="1000", max_connections="50", **values)
        assert await produce(connection, TOPIC) == MESSAGE_TOO_LARGE
        await alter(connection, str(settings.broker_id), message_max_bytes="4000")
        assert await produce(connection, TOPIC) == NONE
        await alter(connection, str(settings.broker_id), message_max_bytes="1000")
        check(broker.broker)
    async with memory_broker(parts, settings) as broker:
        connection = await broker.connect()
        assert await produce(connection, TOPIC) == MESSAGE_TOO_LARGE
        check(broker.broker)


def check(broker: Broker) -> None:
    compactor = broker.services.log.compactor
    assert (compactor.interval_seconds, compactor.map_bytes) == (3.0, 2 << 20)
    assert broker.acceptor.limits.max_connections_count == 50
    assert broker.acceptor.ip_limits.limits.max_connections_count == 50
