"""What may be said of brokers beside this one, and what is told of them: their configs, and who does not serve."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from kafscale.client.connection import Connection
from kafscale.cluster.registries.topics import NewTopic
from kafscale.wire import error_codes as e
from kafscale.wire.messages.brokers import UnregisterBrokerRequest, UnregisterBrokerResponse
from kafscale.wire.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from kafscale.wire.messages.configs import AlterableConfig as ReplacedConfig
from kafscale.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from kafscale.wire.messages.configs import AlterConfigsResource as ReplacedResource
from kafscale.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from kafscale.wire.messages.topics import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    TopicRequest,
)
from tests.cli.loopback_cluster import SOON_SECONDS, LoopbackCluster, loopback_cluster
from tests.devtools.fakes.memory_broker import memory_broker, memory_parts

TOPIC = "orders"
BROKER = 4
SET, DELETE, APPEND = 0, 1, 2
DRAINING = "kafscale.draining"


@pytest.fixture
async def two() -> AsyncIterator[LoopbackCluster]:
    async with loopback_cluster(2, shutdown_timeout_seconds=0.0) as cluster:  # who stops has no time to hand over
        await cluster.broker(1).services.topics.create([NewTopic(name=TOPIC, partition_count=2, replication_factor=3)])
        await cluster.until_led(TOPIC, {1: 1, 2: 1})
        yield cluster


async def alter(
    client: Connection, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> tuple[int, str | None]:
    configs = [IncrementalAlterableConfig(name=key, config_operation=how, value=value) for key, how, value in changes]
    resource = IncrementalAlterConfigsResource(resource_type=BROKER, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (answer,) = (await client.request(request, IncrementalAlterConfigsResponse)).responses
    return answer.error_code, answer.error_message


async def described(client: Connection, name: str) -> dict[str, tuple[str | None, int, bool]]:
    resource = DescribeConfigsResource(resource_type=BROKER, resource_name=name, configuration_keys=None)
    (result,) = (await client.request(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse)).results
    assert (result.error_code, result.error_message) == (e.NONE, None)
    return {each.name: (each.value, each.config_source, each.read_only) for each in result.configs}


def is_draining(cluster: LoopbackCluster, broker_id: int) -> bool:
    membership = cluster.broker(1).services.membership
    return membership.records[broker_id].is_draining


async def test_any_broker_describes_and_alters_the_draining_flag_of_another_broker(two: LoopbackCluster) -> None:
    async with two.client(1) as client:
        assert (await described(client, "2"))[DRAINING] == ("false", 5, False)
        assert "num.partitions" not in await described(client, "2")  # which that one tells itself
        assert "num.partitions" in await described(client, "1")
        assert await alter(client, "2", (DRAINING, SET, "true"), validate_only=True) == (e.NONE, None)
        assert not is_draining(two, 2)
        assert await alter(client, "2", (DRAINING, SET, "true")) == (e.NONE, None)
        assert is_draining(two, 2)
        assert (await described(client, "2"))[DRAINING] == ("true", 2, False)
        assert (await described(client, "1"))[DRAINING] == ("false", 5, False)
        assert await alter(client, "2", (DRAINING, DELETE, None)) == (e.NONE, None)
        assert not is_draining(two, 2)


async def test_any_broker_alters_the_dynamic_configs_and_draining_flag_of_another_broker(two: LoopbackCluster) -> None:
    backoff = "log.cleaner.backoff.ms"
    async with two.client(1) as client:
        assert await alter(client, "2", (DRAINING, SET, "true"), (backoff, SET, "2000")) == (e.NONE, None)
        assert await alter(client, "", (backoff, SET, "3000")) == (e.NONE, None)
        assert is_draining(two, 2)
        await two.broker(2).services.catch_up()
        seconds = [two.broker(each).services.log.compactor.interval_seconds for each in (1, 2)]
        assert seconds == [3.0, 2.0]
        assert await alter(client, "2", (backoff, DELETE, None)) == (e.NONE, None)
        assert is_draining(two, 2)


async def test_replacing_the_configs_of_a_broker_without_the_draining_flag_clears_it(two: LoopbackCluster) -> None:
    async with two.client(2) as client:
        for configs, is_so in (([ReplacedConfig(name=DRAINING, value="true")], True), ([], False)):
            resource = ReplacedResource(resource_type=BROKER, resource_name="2", configs=configs)
            (answer,) = (
                await client.request(AlterConfigsRequest(resources=[resource]), AlterConfigsResponse)
            ).responses
            assert answer.error_code == e.NONE
            await two.broker(1).services.catch_up()
            assert is_draining(two, 2) == is_so


@pytest.mark.parametrize(
    ("name", "config", "value", "said"),
    [
        ("2", DRAINING, "perhaps", "Expected value to be either true or false"),
        ("2", "num.partitions", "3", "Cannot update these configs dynamically: Set(num.partitions)"),
        ("7", DRAINING, "true", "Unexpected broker id, expected 1, but received 7"),
        ("", DRAINING, "true", "Cannot update these configs dynamically: Set(kafscale.draining)"),
        ("2", "kafscale.state", "live", "Cannot update these configs dynamically: Set(kafscale.state)"),
    ],
)
async def test_invalid_configs_of_a_broker_are_refused(
    two: LoopbackCluster, name: str, config: str, value: str, said: str
) -> None:
    async with two.client(1) as client:
        error_code, message = await alter(client, name, (config, SET, value))
        assert error_code in (e.INVALID_REQUEST, e.INVALID_CONFIG)
        assert said in (message or "")
        assert not is_draining(two, 2)


async def test_a_broker_that_does_not_serve_is_fenced_and_its_partitions_are_offline(two: LoopbackCluster) -> None:
    (index,) = two.led_by(2, TOPIC)
    await two.stop(2)
    async with two.client(1) as client:
        for wanted, found in ((False, [(1, False)]), (True, [(1, False), (2, True)])):
            request = DescribeClusterRequest(include_fenced_brokers=wanted)
            answer = await client.request(request, DescribeClusterResponse)
            assert [(each.broker_id, each.is_fenced) for each in answer.brokers] == found
        (topic,) = (
            await client.request(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), MetadataResponse)
        ).topics
        partition = next(each for each in topic.partitions if each.partition_index == index)
        assert (partition.error_code, partition.leader_id) == (e.LEADER_NOT_AVAILABLE, -1)
        assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([2] * 3, [], [2] * 3)
        request_pages = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=TOPIC)])
        (page,) = (await client.request(request_pages, DescribeTopicPartitionsResponse)).topics
        assert (page.partitions[index].leader_id, page.partitions[index].offline_replicas) == (-1, [2] * 3)
        assert page.partitions[1 - index].offline_replicas == []


async def test_metadata_lists_the_assigned_replicas_of_a_partition(two: LoopbackCluster) -> None:
    (index,) = two.led_by(1, TOPIC)
    async with two.client(1) as client:

        async def replicas() -> tuple[int, list[int], list[int]]:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
            (topic,) = (await client.request(request, MetadataResponse)).topics
            found = next(each for each in topic.partitions if each.partition_index == index)
            return found.leader_id, found.replica_nodes, found.isr_nodes

        assert await replicas() == (1, [1] * 3, [1] * 3)
        partition = ReassignablePartition(partition_index=index, replicas=[2, 1, 2])
        wanted = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=TOPIC, partitions=[partition])])
        (answer,) = (await client.request(wanted, AlterPartitionReassignmentsResponse)).responses
        assert answer.partitions[0].error_code == e.NONE
        with trio.fail_after(SOON_SECONDS):
            while index not in two.led_by(2, TOPIC):
                await trio.sleep(0.02)
        await two.broker(1).services.catch_up()
        assert await replicas() == (2, [2, 1, 2], [2, 1, 2])
        assert (await alter(client, "2", (DRAINING, SET, "true")))[0] == e.NONE
        await two.until_led(TOPIC, {1: 2, 2: 0})
        await two.broker(1).services.catch_up()
        assert await replicas() == (1, [2, 1, 2], [2, 1, 2])


async def test_a_broker_is_removed_that_has_stopped_and_leads_nothing(two: LoopbackCluster) -> None:
    async with two.client(1) as client:

        async def remove(broker_id: int) -> int:
            request = UnregisterBrokerRequest(broker_id=broker_id)
            return (await client.request(request, UnregisterBrokerResponse)).error_code

        assert (await remove(7), await remove(2)) == (e.BROKER_ID_NOT_REGISTERED, e.INVALID_REQUEST)
        await two.stop(2)
        assert await remove(2) == e.INVALID_REQUEST  # a partition waits for it
        await two.start(2)
        assert (await alter(client, "2", (DRAINING, SET, "true")))[0] == e.NONE
        await two.until_led(TOPIC, {1: 2, 2: 0})
        await two.stop(2)
        assert (await remove(2), await remove(2)) == (e.NONE, e.BROKER_ID_NOT_REGISTERED)


async def test_a_broker_that_is_alone_is_not_removed(autojump_clock: MockClock) -> None:
    async with memory_broker(memory_parts()) as running:
        client = await running.connect()
        own_id = running.broker.settings.broker_id
        for broker_id, code in ((own_id, e.INVALID_REQUEST), (own_id + 1, e.BROKER_ID_NOT_REGISTERED)):
            request = UnregisterBrokerRequest(broker_id=broker_id)
            assert (await client.request(request, UnregisterBrokerResponse)).error_code == code
