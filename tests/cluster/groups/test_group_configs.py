"""Configs of single consumer groups: which may be set, that they outlast a restart, and that members are told."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest
import trio

from kafscale.cluster.groups import configs as group_configs
from kafscale.cluster.groups.common.context import NO_OVERRIDES, GroupOverrides
from kafscale.cluster.groups.configs import HEARTBEAT_INTERVAL, SESSION_TIMEOUT, GroupConfigs
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.registries.config_definitions import ConfigSource
from kafscale.cluster.registries.topics import NewConfigs
from kafscale.config import CoordinatorSettings
from kafscale.errors import KafkaError
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.error_codes import INVALID_CONFIG, NONE, POLICY_VIOLATION
from kafscale.wire.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from kafscale.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from tests.cluster.late_metadata import LateMetadataStore, compete
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts

GROUP = 32


def to(group_id: str, configs: Mapping[str, str]) -> NewConfigs:
    return NewConfigs(name=group_id, overrides=lambda _old: configs)


async def test_group_configs_and_their_removal_survive_a_restart() -> None:
    store = MemoryMetadataStore()
    configs = GroupConfigs(store)
    assert await configs.alter([to("a/ü", {SESSION_TIMEOUT: "50000"}), to("b", {HEARTBEAT_INTERVAL: "9000"})]) == [
        None,
        None,
    ]
    assert await configs.alter([to("b", {})]) == [None]
    again = GroupConfigs(store)
    await again.load()
    for each in (configs, again):
        assert each.group_ids() == ["a/ü"]
        assert each.overrides == {"a/ü": GroupOverrides(session_timeout_ms=50_000)}


async def test_unreadable_configs_of_a_later_version_are_ignored_and_others_apply(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryMetadataStore()
    configs = GroupConfigs(store)
    await configs.load()
    later = {SESSION_TIMEOUT: "50000", "consumer.new": "1"}
    puts = {"group-configs/a": encode(later), "group-configs/b": encode({SESSION_TIMEOUT: "soon"})}
    await store.commit(Transaction(puts=puts))
    again = GroupConfigs(store)
    await again.load()
    for each in (configs, again):
        assert each.overrides == {"a": GroupOverrides(session_timeout_ms=50_000), "b": NO_OVERRIDES}
    assert "consumer.new" in caplog.text
    (refused,) = await configs.alter([NewConfigs(name="a", overrides=lambda old: {**old, HEARTBEAT_INTERVAL: "6000"})])
    assert refused is not None
    assert refused.code == INVALID_CONFIG


async def test_configs_are_stored_and_read_in_canonical_form() -> None:
    store = MemoryMetadataStore()
    configs = GroupConfigs(store)
    assert await configs.alter([to("a", {SESSION_TIMEOUT: " +50000 "})]) == [None]
    assert (await store.list("group-configs/a"))[0].value == encode({SESSION_TIMEOUT: "50000"})
    await store.commit(Transaction(puts={"group-configs/b": encode({SESSION_TIMEOUT: "\t050000"})}))  # an earlier one
    again = GroupConfigs(store)
    await again.load()
    for each in (configs, again):
        for group_id in ("a", "b"):
            assert [entry.value for entry in each.entries(group_id)] == ["5000", "50000"]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({SESSION_TIMEOUT: "44999"}, "session timeout must be between"),
        ({SESSION_TIMEOUT: "60001"}, "session timeout must be between"),
        ({HEARTBEAT_INTERVAL: "4999"}, "heartbeat interval must be between"),
        ({HEARTBEAT_INTERVAL: "15001"}, "heartbeat interval must be between"),
        ({SESSION_TIMEOUT: "soon"}, "Not a number of type INT"),
        ({SESSION_TIMEOUT: "0"}, "Value must be at least 1"),
        ({"share.session.timeout.ms": "45000"}, "Unknown group config name: share.session.timeout.ms"),
    ],
)
async def test_an_invalid_config_is_refused_and_valid_ones_are_set(wanted: Mapping[str, str], why: str) -> None:
    configs = GroupConfigs(MemoryMetadataStore())
    refused, accepted = await configs.alter([to("a", wanted), to("b", {SESSION_TIMEOUT: "46000"})])
    assert refused is not None
    assert (refused.code, accepted) == (INVALID_CONFIG, None)
    assert why in str(refused.message)
    assert configs.group_ids() == ["b"]


async def test_nothing_is_set_by_a_trial() -> None:
    configs = GroupConfigs(MemoryMetadataStore())
    assert await configs.alter([to("a", {SESSION_TIMEOUT: "50000"})], validate_only=True) == [None]
    (refused,) = await configs.alter([to("a", {SESSION_TIMEOUT: "1"})], validate_only=True)
    assert refused is not None
    assert configs.group_ids() == []


async def test_there_is_a_most_of_groups_that_have_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_configs, "GROUPS_MAX_COUNT", 2)
    configs = GroupConfigs(MemoryMetadataStore())
    *accepted, refused = await configs.alter([to(each, {SESSION_TIMEOUT: "50000"}) for each in ("a", "b", "c")])
    assert accepted == [None, None]
    assert isinstance(refused, KafkaError)
    assert refused.code == POLICY_VIOLATION
    assert await configs.alter([to("a", {SESSION_TIMEOUT: "51000"})]) == [None]


async def test_concurrent_changes_by_two_brokers_are_both_kept() -> None:
    store = LateMetadataStore()
    ours, theirs = GroupConfigs(store), GroupConfigs(store)

    def further(**more: str) -> NewConfigs:
        named = {name.replace("_", "."): value for name, value in more.items()}
        return NewConfigs(name="a", overrides=lambda old: {**old, **named})

    await compete(
        store,
        lambda: ours.alter([further(consumer_session_timeout_ms="50000")]),
        lambda: theirs.alter([further(consumer_heartbeat_interval_ms="9000")]),
    )
    assert ours.overrides == {"a": GroupOverrides(session_timeout_ms=50_000, heartbeat_interval_ms=9_000)}


async def test_a_group_config_outside_the_broker_limits_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """It would have ended every heartbeat of the group with an error."""
    store = MemoryMetadataStore()
    await GroupConfigs(store).alter([to("a", {HEARTBEAT_INTERVAL: "9000"})])
    strict = CoordinatorSettings(group_consumer_max_heartbeat_interval_ms=8_000)
    configs = GroupConfigs(store, strict)
    with caplog.at_level(logging.WARNING):
        await configs.load()
    assert configs.overrides == {"a": NO_OVERRIDES}
    assert "group 'a' uses the broker's times" in caplog.text
    assert [(each.value, each.source) for each in configs.entries("a")] == [
        ("9000", ConfigSource.GROUP_CONFIG),
        ("45000", ConfigSource.DEFAULT_CONFIG),
    ]


async def heartbeat_interval(broker: MemoryBroker, member_epoch: int = 0) -> int:
    """What a member of the group `a` is told."""
    connection = await broker.connect()
    request = ConsumerGroupHeartbeatRequest(
        group_id="a",
        member_id="m",
        member_epoch=member_epoch,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    while (answer := await connection.request(request, ConsumerGroupHeartbeatResponse)).error_code:
        await trio.sleep(0.1)
    return answer.heartbeat_interval_ms


async def test_members_receive_a_new_config_with_the_next_heartbeat(autojump_clock: trio.abc.Clock) -> None:
    parts = memory_parts()
    async with memory_broker(parts) as broker:
        assert await heartbeat_interval(broker) == 5_000
        config = IncrementalAlterableConfig(name=HEARTBEAT_INTERVAL, config_operation=0, value="9000")
        resource = IncrementalAlterConfigsResource(resource_type=GROUP, resource_name="a", configs=[config])
        client = await broker.connect()
        request = IncrementalAlterConfigsRequest(resources=[resource])
        answer = await client.request(request, IncrementalAlterConfigsResponse)
        assert [each.error_code for each in answer.responses] == [NONE]
        assert await heartbeat_interval(broker) == 9_000
    async with memory_broker(parts) as broker:
        assert await heartbeat_interval(broker) == 9_000
