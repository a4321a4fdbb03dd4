"""Routing: from the bootstrap address to leaders and coordinators."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from kafscale.client import Client, Connection, connect
from kafscale.config import Address
from kafscale.errors import BrokerUnavailable, KafkaError
from kafscale.wire import error_codes
from kafscale.wire.messages.cluster import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kafscale.wire.messages.groups import HeartbeatRequest, HeartbeatResponse
from kafscale.wire.messages.topics import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.devtools.fakes.scripted_broker import ScriptedBroker


def topic(name: str | None, leader_id: int = 1, error_code: int = 0) -> MetadataResponseTopic:
    partitions = [MetadataResponsePartition(partition_index=0, leader_id=leader_id)]
    return MetadataResponseTopic(name=name, topic_id=bytes(16), partitions=partitions, error_code=error_code)


async def test_a_request_goes_to_the_partitions_leader() -> None:
    leader = ScriptedBroker({HeartbeatRequest: lambda request: HeartbeatResponse()})
    async with leader.listening() as leader_address:
        broker = MetadataResponseBroker(node_id=7, host=leader_address.host, port=leader_address.port)

        def metadata(request: MetadataRequest) -> MetadataResponse:
            return MetadataResponse(brokers=[broker], topics=[topic(each.name, 7) for each in request.topics or []])

        async with ScriptedBroker({MetadataRequest: metadata}).listening() as bootstrap, connect(bootstrap) as client:
            connection = await client.leader("t", 0)
            assert connection.address == leader_address
            assert await client.leader("t", 0) is connection
            with pytest.raises(KafkaError, match="partition 1 of topic 't': UNKNOWN_TOPIC_OR_PARTITION"):
                await client.leader("t", 1)


@asynccontextmanager
async def memory_client(broker: ScriptedBroker) -> AsyncIterator[Client]:
    """A client whose bootstrap connection is in memory, so that an autojump clock can drive both sides."""
    bootstrap = Address("broker", 9092)
    client = Client(bootstrap=bootstrap, client_id="test")
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.serve, theirs)
        client.adopt(await Connection.over(ours, bootstrap))
        yield client
        await client.aclose()


async def test_a_topic_that_has_no_leader_yet_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    answers = iter([(-1, error_codes.LEADER_NOT_AVAILABLE), (-1, 0), (1, 0)])

    def metadata(request: MetadataRequest) -> MetadataResponse:
        assert request.allow_auto_topic_creation
        leader_id, error_code = next(answers)
        found = topic("t", leader_id, error_code)
        if leader_id < 0 and not error_code:
            found.partitions[0].error_code = error_codes.LEADER_NOT_AVAILABLE
        return MetadataResponse(topics=[found])

    async with memory_client(ScriptedBroker({MetadataRequest: metadata})) as client:
        assert (await client.topic("t", create=True)).leaders == {0: 1}


async def test_a_topic_that_does_not_exist_is_an_error_with_its_name() -> None:
    def metadata(request: MetadataRequest) -> MetadataResponse:
        return MetadataResponse(topics=[topic("t", error_code=error_codes.UNKNOWN_TOPIC_OR_PARTITION)])

    async with memory_client(ScriptedBroker({MetadataRequest: metadata})) as client:
        with pytest.raises(KafkaError, match="topic 't': UNKNOWN_TOPIC_OR_PARTITION") as caught:
            await client.topic("t")
    assert caught.value.code == error_codes.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_coordinator_that_is_loading_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    codes = iter([error_codes.COORDINATOR_LOAD_IN_PROGRESS, error_codes.GROUP_AUTHORIZATION_FAILED])

    def find(request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(coordinators=[Coordinator(key="g", error_code=next(codes))])

    async with memory_client(ScriptedBroker({FindCoordinatorRequest: find})) as client:
        with pytest.raises(KafkaError, match="coordinator of group 'g': GROUP_AUTHORIZATION_FAILED"):
            await client.coordinator("g")


@pytest.mark.parametrize("version", [0, 3, 4])
async def test_the_coordinator_is_read_from_old_and_new_replies(version: int) -> None:
    def find(request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        assert request.key == "g" or request.coordinator_keys == ["g"]
        found = Coordinator(key="g", node_id=1, host=address.host, port=address.port)
        return FindCoordinatorResponse(host=address.host, port=address.port, coordinators=[found])

    broker = ScriptedBroker({FindCoordinatorRequest: find}, {FindCoordinatorRequest: (version, version)})
    async with broker.listening() as address, connect(address) as client:
        assert (await client.coordinator("g")).address == address


async def test_a_broken_connection_is_reopened() -> None:
    broker = ScriptedBroker({HeartbeatRequest: lambda request: HeartbeatResponse()})
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    async with broker.listening() as address, connect(address) as client:
        await (await client.connection_to(address)).aclose()
        assert (await client.request(heartbeat, HeartbeatResponse)).error_code == 0


async def test_an_unreachable_bootstrap_address_fails_at_once() -> None:
    async with ScriptedBroker({}).listening() as address:
        pass
    with pytest.raises(BrokerUnavailable, match="can't connect to"):
        async with connect(address):
            pass
