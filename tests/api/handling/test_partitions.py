"""What every API answers about a partition that the topic has and that this broker does not lead."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio.testing

from kafscale.api.handling.calls import Call
from kafscale.api.produce import begin
from kafscale.client.connection import Connection
from kafscale.cluster.membership.assignment import Leader
from kafscale.cluster.registries.topics import MorePartitions, NewTopic, TopicRegistry
from kafscale.config import Durability
from kafscale.testing.faulty_store import FaultyStore, On
from kafscale.wire import error_codes
from kafscale.wire.codec import encode
from kafscale.wire.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kafscale.wire.messages.records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kafscale.wire.messages.replicas import DescribeLogDirsRequest, DescribeLogDirsResponse
from kafscale.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from kafscale.wire.records import Record, build_batch
from tests.api.assignments import OTHER_ID, TwoBrokers, hand_over, take_over
from tests.api.handlers import some_peer
from tests.devtools.fakes.memory_broker import MemoryBroker, memory_broker, memory_parts, memory_settings

TOPIC, MOVED, STAYS, MISSING = "orders", 0, 1, 7
LATEST = -1
NOT_LEADER, UNKNOWN = error_codes.NOT_LEADER_OR_FOLLOWER, error_codes.UNKNOWN_TOPIC_OR_PARTITION
ELSEWHERE = Leader(OTHER_ID, 7)
NO_LEADER = (-1, -1)


@attrs.define(eq=False)
class Fixture:
    """A broker of two, of which the other one leads partition MOVED of the topic."""

    running: MemoryBroker
    assignment: TwoBrokers
    client: Connection
    topic_id: bytes
    store: FaultyStore

    async def ask(self, request, response_class, version):
        call = self.client.call(type(request), response_class, version=version)
        return await (await self.client.send_encoded(call, encode(request, version))).wait()


@pytest.fixture
async def fixture(autojump_clock: trio.testing.MockClock) -> AsyncIterator[Fixture]:
    async with one_of_two() as fixture:
        yield fixture


@asynccontextmanager
async def one_of_two(**settings: object) -> AsyncIterator[Fixture]:
    parts = memory_parts()
    store = FaultyStore(parts.store)
    async with memory_broker(attrs.evolve(parts, store=store), memory_settings(**settings)) as running:
        (topic,) = await running.broker.services.topics.create([NewTopic(name=TOPIC, partition_count=2)])
        assignment = TwoBrokers.of(running.broker)
        fixture = Fixture(running, assignment, await running.connect(), topic.topic_id, store)
        await produce(fixture, MOVED, 9)
        await hand_over(running.broker, TOPIC, MOVED)
        assignment.others[TOPIC, MOVED] = ELSEWHERE
        yield fixture


async def produce(fixture, index, version):
    response = await fixture.ask(produce_request(index), ProduceResponse, version)
    return response, response.responses[0].partition_responses[0]


def produce_request(index):
    batch = build_batch([Record(value=b"v", timestamp_ms=1_000)])
    data = PartitionProduceData(index=index, records=memoryview(batch))
    topic = TopicProduceData(name=TOPIC, partition_data=[data])
    return ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[topic])


async def fetch(fixture, index, version, *, leader_epoch=-1, max_wait_ms=0):
    wanted = FetchPartition(
        partition=index, fetch_offset=0, partition_max_bytes=1 << 20, current_leader_epoch=leader_epoch
    )
    topic = FetchTopic(topic=TOPIC, topic_id=fixture.topic_id, partitions=[wanted])
    request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=[topic])
    response = await fixture.ask(request, FetchResponse, version)
    return response, response.responses[0].partitions[0]


def told(response, answer):
    """Whom an answer names as the leader, and where the response says that brokers are."""
    endpoints = [(each.node_id, each.host, each.port) for each in response.node_endpoints]
    return (answer.current_leader.leader_id, answer.current_leader.leader_epoch), endpoints


@pytest.mark.parametrize("version", range(3, 12))
async def test_produce_names_the_leader(fixture: Fixture, version: int) -> None:
    for _ in range(3):  # the first of its kind, and those that a pattern knows
        response, answer = await produce(fixture, MOVED, version)
        assert (answer.error_code, answer.base_offset) == (NOT_LEADER, -1)
        named = ((OTHER_ID, 7), [(OTHER_ID, "other.example", 9094)])
        assert told(response, answer) == (named if version >= 10 else (NO_LEADER, []))
        response, answer = await produce(fixture, STAYS, version)
        assert (answer.error_code, told(response, answer)) == (error_codes.NONE, (NO_LEADER, []))
    response, answer = await produce(fixture, MISSING, version)
    assert (answer.error_code, told(response, answer)) == (UNKNOWN, (NO_LEADER, []))


async def test_produce_names_the_leader_at_the_time_of_its_answer(autojump_clock: trio.testing.MockClock) -> None:
    """It waits for those before it on its connection, and it may be decided meanwhile who leads."""
    async with one_of_two(durability=Durability.SEGMENT) as fixture:
        fixture.assignment.others[TOPIC, MOVED] = None
        gate = fixture.store.hold(On("put_if_absent", "*.kfs"))
        answers = []

        async def ask(index: int) -> None:
            answers.append(await produce(fixture, index, 10))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, STAYS)
            await gate.wait_arrived()
            nursery.start_soon(ask, MOVED)
            await trio.sleep(1.0)
            fixture.assignment.others[TOPIC, MOVED] = ELSEWHERE
            assert not answers
            gate.open()
        assert [answer.error_code for _, answer in answers] == [error_codes.NONE, NOT_LEADER]
        assert told(*answers[1]) == ((OTHER_ID, 7), [(OTHER_ID, "other.example", 9094)])


@pytest.mark.parametrize("version", range(4, 17))
async def test_fetch_names_the_leader_and_does_not_wait(fixture: Fixture, version: int) -> None:
    began = trio.current_time()
    response, answer = await fetch(fixture, MOVED, version, max_wait_ms=60_000)
    assert trio.current_time() - began < 1
    assert answer.error_code == NOT_LEADER
    leader, endpoints = told(response, answer)
    assert leader == ((OTHER_ID, 7) if version >= 12 else NO_LEADER)
    assert endpoints == ([(OTHER_ID, "other.example", 9094)] if version >= 16 else [])
    response, answer = await fetch(fixture, STAYS, version)
    assert (answer.error_code, told(response, answer)) == (error_codes.NONE, (NO_LEADER, []))
    response, answer = await fetch(fixture, MISSING, version)
    assert (answer.error_code, told(response, answer)) == (UNKNOWN, (NO_LEADER, []))


async def test_a_fetch_response_lists_each_leader_endpoint_once(fixture: Fixture) -> None:
    fixture.assignment.others[TOPIC, STAYS] = ELSEWHERE
    await hand_over(fixture.running.broker, TOPIC, STAYS)
    wanted = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in (MOVED, STAYS)]
    topic = FetchTopic(topic_id=fixture.topic_id, partitions=wanted)
    response = await fixture.ask(FetchRequest(max_wait_ms=0, min_bytes=1, topics=[topic]), FetchResponse, 16)
    for answer in response.responses[0].partitions:
        assert told(response, answer) == ((OTHER_ID, 7), [(OTHER_ID, "other.example", 9094)])


async def test_answers_give_the_leader_address_of_the_clients_listener(fixture: Fixture) -> None:
    fixture.client = await Connection.over(fixture.running.open_stream("INSIDE"), fixture.client.address)
    response, answer = await produce(fixture, MOVED, 10)
    assert told(response, answer) == ((OTHER_ID, 7), [(OTHER_ID, "other.inside", 9095)])
    response, answer = await fetch(fixture, MOVED, 16)
    assert told(response, answer) == ((OTHER_ID, 7), [(OTHER_ID, "other.inside", 9095)])


@pytest.mark.parametrize("leader", [None, Leader(0, 1)])
async def test_no_leader_is_named_when_there_is_none_or_it_is_this_broker(fixture: Fixture, leader: Leader) -> None:
    if leader is not None:
        leader = attrs.evolve(leader, node_id=fixture.running.broker.services.node.node_id)
    fixture.assignment.others[TOPIC, MOVED] = leader
    for response, answer in (await produce(fixture, MOVED, 11), await fetch(fixture, MOVED, 16)):
        assert (answer.error_code, told(response, answer)) == (NOT_LEADER, (NO_LEADER, []))


async def test_other_apis_answer_not_leader_too(fixture: Fixture) -> None:
    for index, expected in ((MOVED, NOT_LEADER), (STAYS, error_codes.NONE), (MISSING, UNKNOWN)):
        offsets = ListOffsetsTopic(
            name=TOPIC, partitions=[ListOffsetsPartition(partition_index=index, timestamp=LATEST)]
        )
        listed = await fixture.ask(ListOffsetsRequest(topics=[offsets]), ListOffsetsResponse, 7)
        assert listed.topics[0].partitions[0].error_code == expected
        epochs = OffsetForLeaderTopic(
            topic=TOPIC, partitions=[OffsetForLeaderPartition(partition=index, leader_epoch=0)]
        )
        ends = await fixture.ask(OffsetForLeaderEpochRequest(topics=[epochs]), OffsetForLeaderEpochResponse, 4)
        assert ends.topics[0].partitions[0].error_code == expected
        records = DeleteRecordsTopic(name=TOPIC, partitions=[DeleteRecordsPartition(partition_index=index, offset=-1)])
        request = DeleteRecordsRequest(topics=[records], timeout_ms=1_000)
        deleted = await fixture.ask(request, DeleteRecordsResponse, 2)
        assert deleted.topics[0].partitions[0].error_code == expected
    sizes = (await fixture.ask(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, 4)).results[0].topics
    assert [each.partition_index for each in sizes[0].partitions] == [STAYS]


async def test_apis_check_and_return_the_leader_epoch_of_the_partition(fixture: Fixture) -> None:
    own = fixture.running.broker.services.node.broker_epoch
    await take_over(fixture.running.broker, TOPIC, MOVED, epoch=12)
    for epoch, error in ((own, "FENCED_LEADER_EPOCH"), (12, "NONE"), (13, "UNKNOWN_LEADER_EPOCH")):
        _, answer = await fetch(fixture, MOVED, 16, leader_epoch=epoch)
        assert error_codes.name(answer.error_code) == error
    _, answer = await fetch(fixture, STAYS, 16, leader_epoch=own)
    assert answer.error_code == error_codes.NONE
    asked = ListOffsetsPartition(partition_index=MOVED, timestamp=LATEST, current_leader_epoch=12)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[asked])])
    (answer,) = (await fixture.ask(request, ListOffsetsResponse, 7)).topics[0].partitions
    assert (answer.error_code, answer.leader_epoch, answer.offset) == (error_codes.NONE, 12, 1)
    wanted = OffsetForLeaderPartition(partition=MOVED, current_leader_epoch=12, leader_epoch=own)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[wanted])])
    (answer,) = (await fixture.ask(request, OffsetForLeaderEpochResponse, 4)).topics[0].partitions
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (error_codes.NONE, own, 1)
    assert await leaders_told(fixture) == [(fixture.running.broker.services.node.node_id, 12), (own_id(fixture), own)]


def own_id(fixture: Fixture) -> int:
    return fixture.running.broker.services.node.node_id


async def leaders_told(fixture: Fixture):
    request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    (topic,) = (await fixture.ask(request, MetadataResponse, 12)).topics
    return [(each.leader_id, each.leader_epoch) for each in topic.partitions]


async def test_metadata_follows_the_assignment(fixture: Fixture) -> None:
    own = (own_id(fixture), fixture.running.broker.services.node.broker_epoch)
    assert await leaders_told(fixture) == [(OTHER_ID, 7), own]
    fixture.assignment.others[TOPIC, MOVED] = Leader(OTHER_ID, 8)
    fixture.assignment.others[TOPIC, STAYS] = None
    response = await fixture.ask(MetadataRequest(topics=None), MetadataResponse, 12)
    assert [(each.node_id, each.host) for each in response.brokers] == [(own[0], "127.0.0.1"), (9, "other.example")]
    moved, stays = response.topics[0].partitions
    assert (moved.error_code, moved.leader_id, moved.leader_epoch) == (error_codes.NONE, OTHER_ID, 8)
    assert (moved.replica_nodes, moved.isr_nodes) == ([OTHER_ID], [OTHER_ID])
    assert (stays.error_code, stays.leader_id) == (error_codes.LEADER_NOT_AVAILABLE, -1)
    assert response.controller_id == own[0]
    fixture.assignment.other_controls = True
    assert (await fixture.ask(MetadataRequest(topics=[]), MetadataResponse, 12)).controller_id == OTHER_ID


async def test_describe_cluster_and_find_coordinator_follow_the_assignment(fixture: Fixture) -> None:
    fixture.assignment.other_controls = fixture.assignment.other_coordinates = True
    cluster = await fixture.ask(DescribeClusterRequest(), DescribeClusterResponse, 1)
    assert cluster.controller_id == OTHER_ID
    assert [(each.broker_id, each.host, each.port) for each in cluster.brokers] == [
        (own_id(fixture), "127.0.0.1", 9092),
        (OTHER_ID, "other.example", 9094),
    ]
    request = FindCoordinatorRequest(key="g", coordinator_keys=["g"])
    (found,) = (await fixture.ask(request, FindCoordinatorResponse, 4)).coordinators
    assert (found.error_code, found.node_id, found.host, found.port) == (0, OTHER_ID, "other.example", 9094)


async def test_create_topics_accepts_manual_assignment_to_registered_brokers_only(fixture: Fixture) -> None:
    for ids, error in (([OTHER_ID], error_codes.NONE), ([OTHER_ID + 1], error_codes.INVALID_REPLICA_ASSIGNMENT)):
        by_hand = [CreatableReplicaAssignment(partition_index=0, broker_ids=ids)]
        topic = CreatableTopic(name=f"t{ids[0]}", num_partitions=-1, replication_factor=-1, assignments=by_hand)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=1_000)
        assert (await fixture.ask(request, CreateTopicsResponse, 7)).topics[0].error_code == error


async def test_partitions_are_opened_only_where_they_are_led(fixture: Fixture) -> None:
    services = fixture.running.broker.services
    fixture.assignment.others[TOPIC, 2] = ELSEWHERE
    await services.topics.create_partitions([MorePartitions(name=TOPIC, partition_count=4)])
    assert [services.log.partition_named(TOPIC, index) is None for index in range(4)] == [True, False, True, False]
    fixture.assignment.others["new", 0] = ELSEWHERE
    await services.topics.create([NewTopic(name="new")])
    assert services.log.partition_named("new", 0) is None


async def test_a_fetch_that_waits_is_answered_when_its_partition_is_handed_over(fixture: Fixture) -> None:
    answers = []

    async def wait_for_more() -> None:
        wanted = FetchPartition(partition=STAYS, fetch_offset=0, partition_max_bytes=1 << 20)
        topic = FetchTopic(topic=TOPIC, topic_id=fixture.topic_id, partitions=[wanted])
        request = FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=[topic])
        answers.append((await fixture.ask(request, FetchResponse, 16)).responses[0].partitions[0].error_code)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_more)
        await trio.sleep(1)
        assert not answers
        fixture.assignment.others[TOPIC, STAYS] = ELSEWHERE
        began = trio.current_time()
        await hand_over(fixture.running.broker, TOPIC, STAYS)
    assert answers == [NOT_LEADER]
    assert trio.current_time() - began < 1


async def test_a_produce_that_waits_for_its_turn_is_refused_once_its_partition_is_handed_over(fixture: Fixture) -> None:
    """It was read while the partition was led here, and waited for a check in a thread, or for memory."""
    services = fixture.running.broker.services
    batch = memoryview(build_batch([Record(value=b"v", timestamp_ms=1_000)]))
    data = PartitionProduceData(index=STAYS, records=batch)
    request = ProduceRequest(
        acks=-1, timeout_ms=1_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])]
    )
    call = Call(api_key=0, version=11, correlation_id=1, client_id="test", peer=some_peer())
    pending = begin(services, call, request, size_bytes=len(batch), frame_lease=None)
    await hand_over(fixture.running.broker, TOPIC, STAYS)
    pending.order()
    assert pending.response.responses[0].partition_responses[0].error_code == NOT_LEADER
    assert services.log.pool.used_bytes == 0


@pytest.mark.parametrize("during_commit", ["comes back", "is on its way"])
async def test_records_that_are_deleted_while_a_partition_moves_stay_deleted(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, during_commit: str
) -> None:
    broker, store = fixture.running.broker, fixture.store
    await produce(fixture, STAYS, 9)
    await produce(fixture, STAYS, 9)
    set_durably = TopicRegistry.set_log_start_offset
    async with trio.open_nursery() as nursery:
        gate = store.hold(On("list"))

        async def set_meanwhile(topics: TopicRegistry, topic_id: bytes, index: int, offset: int) -> None:
            await hand_over(broker, TOPIC, STAYS)
            nursery.start_soon(lambda: take_over(broker, TOPIC, STAYS, epoch=20))
            await gate.wait_arrived()
            if during_commit == "comes back":
                gate.open()
                await trio.sleep(1)
            await set_durably(topics, topic_id, index, offset)

        monkeypatch.setattr(TopicRegistry, "set_log_start_offset", set_meanwhile)
        records = DeleteRecordsTopic(name=TOPIC, partitions=[DeleteRecordsPartition(partition_index=STAYS, offset=1)])
        request = DeleteRecordsRequest(topics=[records], timeout_ms=1_000)
        (answer,) = (await fixture.ask(request, DeleteRecordsResponse, 2)).topics[0].partitions
        assert (answer.error_code, answer.low_watermark) == (error_codes.NONE, 1)
        gate.open()
    assert broker.services.log.partition_named(TOPIC, STAYS).log_start_offset == 1
