"""Requests whose answers, or whose handling, were many times as large: each entry once, in pieces, within a bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import trio

from kafscale.client.client import connect
from kafscale.client.connection import Connection
from kafscale.wire import codec
from kafscale.wire.error_codes import INVALID_CONFIG, INVALID_REQUEST, LEADER_NOT_AVAILABLE, NONE, POLICY_VIOLATION
from kafscale.wire.frames import parse_response_header
from kafscale.wire.messages.cluster import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    FeatureUpdateKey,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    PartitionToDescribe,
    TopicToDescribe,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kafscale.wire.messages.configs import (
    AlterClientQuotasEntry,
    AlterClientQuotasOp,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    ClientQuotasEntity,
    DescribeClientQuotasComponent,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from kafscale.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from kafscale.wire.messages.consumer_groups import HeartbeatTopicPartitions as OwnedPartitions
from kafscale.wire.messages.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    ListGroupsRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafscale.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from kafscale.wire.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kafscale.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    ElectedTopicPartitions,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from kafscale.wire.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialUpsertion,
    UserName,
)
from kafscale.wire.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    TopicRequest,
)
from kafscale.wire.messages.transactions import DescribedProducersTopic as ProducersTopic
from kafscale.wire.messages.transactions import DescribeProducersRequest, DescribeProducersResponse
from kafscale.wire.primitives import uvarint
from tests.devtools.processes import timed_loop
from tests.devtools.processes.process import BrokerProcess, broker_process
from tests.hostile.hostile import Seen, bystander, greet, next_answer, raw_connection, request_bytes

T = TypeVar("T")

GROWN_MAX_MIB = 400.0  # of the broker; most took more than 1 GiB
ANSWER_MAX_SECONDS = 60.0
TOPIC, PARTITIONS_COUNT = "many", 3_000


async def attack(broker: BrokerProcess, attacks: Sequence[bytes]) -> tuple[Seen, list[bytes | None]]:
    """Send each on a connection of its own, all at once, and take the answers, with a client beside."""
    answers: list[bytes | None] = [None] * len(attacks)

    async def one(index: int) -> None:
        async with raw_connection(broker.kafka) as attacker:
            await greet(attacker)
            await attacker.send_all(attacks[index])
            answers[index] = await next_answer(attacker)

    async with bystander(broker) as seen:
        with trio.fail_after(ANSWER_MAX_SECONDS):
            async with trio.open_nursery() as nursery:
                for index in range(len(attacks)):
                    nursery.start_soon(one, index)
    print(
        f"{len(attacks[0])} B: answers of {[len(each or b'') for each in answers]} B; others waited for at most "
        f"{seen.worst_seconds:.3f} s, {seen.longest_step_seconds:.3f} s at a stretch, grown by {seen.grown_mib:.0f} MiB"
    )
    assert seen.problems(grown_max_mib=GROWN_MAX_MIB) == []
    return seen, answers


def decoded(answer: bytes | None, response_class: type[T], version: int) -> T:
    assert answer is not None
    _, at = parse_response_header(memoryview(answer), flexible_header=codec.is_flexible(response_class, version))
    return codec.decode(response_class, version, answer[at:])


async def join(connection: Connection, group_id: str, metadata: bytes) -> JoinGroupResponse:
    """Be the only member of a stable group."""
    protocols = [JoinGroupRequestProtocol(name="range", metadata=metadata)]
    request = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=45_000,
        rebalance_timeout_ms=45_000,
        member_id="",
        protocol_type="x",
        protocols=protocols,
    )
    request.member_id = (await connection.request(request, JoinGroupResponse)).member_id
    joined = await connection.request(request, JoinGroupResponse)
    sync = SyncGroupRequest(group_id=group_id, generation_id=joined.generation_id, member_id=joined.member_id)
    sync.protocol_type, sync.protocol_name = "x", "range"
    assert (await connection.request(sync, SyncGroupResponse)).error_code == NONE
    return joined


async def commit_all(connection: Connection, group_id: str) -> None:
    """Commit an offset of each partition, 12 MB in all."""
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata="m" * 4096)
        for index in range(PARTITIONS_COUNT)
    ]
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)],
    )
    response = await connection.request(request, OffsetCommitResponse)
    assert {each.error_code for each in response.topics[0].partitions} == {NONE}


async def create_topic(connection: Connection) -> None:
    topic = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS_COUNT, replication_factor=1)
    response = await connection.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), CreateTopicsResponse)
    assert response.topics[0].error_code == 0


async def test_a_find_coordinator_key_repeated_half_a_million_times_is_answered_once(broker: BrokerProcess) -> None:
    request = FindCoordinatorRequest(coordinator_keys=[""] * 500_000)
    _, (answer,) = await attack(broker, [request_bytes(request, 4)])
    assert len(decoded(answer, FindCoordinatorResponse, 4).coordinators) == 1


async def test_coordinators_of_many_keys(broker: BrokerProcess) -> None:
    request = FindCoordinatorRequest(coordinator_keys=[f"{index:x}" for index in range(200_000)])
    _, (answer,) = await attack(broker, [request_bytes(request, 4)])
    assert len(answer or b"") > 200_000 * 20


async def test_metadata_of_many_names(broker: BrokerProcess) -> None:
    topics = [MetadataRequestTopic(name=f"{index:x}") for index in range(200_000)]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    _, (answer,) = await attack(broker, [request_bytes(request, 12)])
    assert len(answer or b"") > 200_000 * 20


async def test_partitions_of_many_names(broker: BrokerProcess) -> None:
    topics = [TopicRequest(name=f"{index:x}") for index in range(200_000)]
    _, (answer,) = await attack(broker, [request_bytes(DescribeTopicPartitionsRequest(topics=topics), 0)])
    assert len(answer or b"") > 200_000 * 20


async def test_leaders_of_partitions_that_are_named_many_times(broker: BrokerProcess) -> None:
    asked = [ElectedTopicPartitions(topic="nothing", partitions=[*range(100_000)] * 3)]
    _, (answer,) = await attack(broker, [request_bytes(ElectLeadersRequest(topic_partitions=asked), 2)])
    (topic,) = decoded(answer, ElectLeadersResponse, 2).replica_election_results
    assert len(topic.partition_result) == 100_000


async def test_a_partition_that_is_reassigned_many_times(broker: BrokerProcess) -> None:
    partitions = [ReassignablePartition(partition_index=0, replicas=[0])] * 200_000
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="nothing", partitions=partitions)])
    _, (answer,) = await attack(broker, [request_bytes(request, 1)])
    (topic,) = decoded(answer, AlterPartitionReassignmentsResponse, 1).responses
    assert len(topic.partitions) == 1


async def test_partitions_that_are_moved_and_described_many_times(broker: BrokerProcess) -> None:
    indexes = [*range(50_000)] * 2
    moved = AlterReplicaLogDir(path="/", topics=[AlterReplicaLogDirTopic(name="nothing", partitions=indexes)])
    described = [ProducersTopic(name="nothing", partition_indexes=indexes)]
    voters = [PartitionToDescribe(partition_index=index) for index in indexes]
    requests = [
        request_bytes(AlterReplicaLogDirsRequest(dirs=[moved] * 2), 2),
        request_bytes(DescribeProducersRequest(topics=described * 2), 0),
        request_bytes(DescribeQuorumRequest(topics=[TopicToDescribe(topic_name="nothing", partitions=voters)]), 2),
    ]
    _, answers = await attack(broker, requests)
    (of_dirs,) = decoded(answers[0], AlterReplicaLogDirsResponse, 2).results
    (of_producers,) = decoded(answers[1], DescribeProducersResponse, 0).topics
    (of_quorum,) = decoded(answers[2], DescribeQuorumResponse, 2).topics
    found = (of_dirs.partitions, of_producers.partitions, of_quorum.partitions)
    assert [len(each) for each in found] == [50_000] * 3


async def test_features_users_and_quotas_that_are_named_many_times(broker: BrokerProcess) -> None:
    kept = FeatureUpdateKey(feature="transaction.version", max_version_level=2)
    users = [UserName(name=f"{index:x}") for index in range(50_000)] * 2
    anybody = [DescribeClientQuotasComponent(entity_type="user", match_type=2, match=None)] * 100_000
    requests = [
        request_bytes(UpdateFeaturesRequest(feature_updates=[kept] * 100_000), 1),
        request_bytes(DescribeUserScramCredentialsRequest(users=users), 0),
        request_bytes(DescribeClientQuotasRequest(components=anybody), 1),
    ]
    _, answers = await attack(broker, requests)
    assert len(decoded(answers[0], UpdateFeaturesResponse, 1).results) == 1
    assert len(decoded(answers[1], DescribeUserScramCredentialsResponse, 0).results) == 50_000
    assert decoded(answers[2], DescribeClientQuotasResponse, 1).error_code == INVALID_REQUEST


async def test_repeated_groups_and_partitions_of_offset_fetch_are_answered_once() -> None:
    with broker_process(*timed_loop.fixed(max_response_bytes=16 << 20), program=timed_loop.PROGRAM) as broker:
        async with connect(broker.kafka) as client:
            coordinator = await client.coordinator("g")
            await create_topic(coordinator)
            for number in range(2):
                await commit_all(coordinator, f"g{number}")
        first, second = (OffsetFetchRequestGroup(group_id=f"g{number}", topics=None) for number in range(2))
        topics = [OffsetFetchRequestTopic(name=TOPIC, partition_indexes=indexes) for indexes in ([7] * 50_000, [7, 8])]
        one_partition = OffsetFetchRequestGroup(group_id="g0", topics=topics)
        asked = [[first] * 30, [one_partition] * 2, [first, second]]
        _, answers = await attack(broker, [request_bytes(OffsetFetchRequest(groups=groups), 8) for groups in asked])
        (group,) = decoded(answers[0], OffsetFetchResponse, 8).groups
        assert len(group.topics[0].partitions) == PARTITIONS_COUNT
        (group,) = decoded(answers[1], OffsetFetchResponse, 8).groups
        assert [each.partition_index for each in group.topics[0].partitions] == [7, 8]
        assert answers[2] is None
        assert "the answer would be larger than 16777216 bytes" in broker.log


async def test_a_large_group_repeated_in_describe_groups_is_answered_once(broker: BrokerProcess) -> None:
    async with connect(broker.kafka) as client:
        await join(await client.coordinator("large"), "large", bytes(1_000_000))
        _, (answer,) = await attack(broker, [request_bytes(DescribeGroupsRequest(groups=["large"] * 600), 5)])
    (group,) = decoded(answer, DescribeGroupsResponse, 5).groups
    assert len(group.members) == 1


async def test_a_heartbeat_with_200000_single_partitions_is_refused_quickly(broker: BrokerProcess) -> None:
    """For each of them those before it were copied: a minute for 200,000."""
    owned = [OwnedPartitions(topic_id=bytes(16), partitions=[index]) for index in range(200_000)]
    request = ConsumerGroupHeartbeatRequest(
        group_id="one-by-one", member_id="m", member_epoch=0, rebalance_timeout_ms=1_000, topic_partitions=owned
    )
    _, (answer,) = await attack(broker, [request_bytes(request, 1)])
    assert decoded(answer, ConsumerGroupHeartbeatResponse, 1).error_code == INVALID_REQUEST


async def test_lists_of_configs_that_grow_by_thousands(broker: BrokerProcess) -> None:
    """Each item was looked for among those before it."""
    names = [f"listed{index}" for index in range(10)]
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    items = ",".join(f"{index:x}" for index in range(7_000))
    grown = [IncrementalAlterableConfig(name="cleanup.policy", config_operation=2, value=items)]
    resources = [IncrementalAlterConfigsResource(resource_type=2, resource_name=name, configs=grown) for name in names]
    async with connect(broker.kafka) as client:
        await client.request(CreateTopicsRequest(topics=topics, timeout_ms=10_000), CreateTopicsResponse)
    _, (answer,) = await attack(broker, [request_bytes(IncrementalAlterConfigsRequest(resources=resources), 1)])
    outcomes = decoded(answer, IncrementalAlterConfigsResponse, 1).responses
    assert [each.error_code for each in outcomes] == [INVALID_CONFIG] * 10


def group_resources(count: int) -> list[IncrementalAlterConfigsResource]:
    configs = [IncrementalAlterableConfig(name="consumer.session.timeout.ms", config_operation=0, value="50000")]
    return [
        IncrementalAlterConfigsResource(resource_type=32, resource_name=f"g{index}", configs=configs)
        for index in range(count)
    ]


async def test_configs_of_very_many_groups(own_broker: BrokerProcess) -> None:
    """A set of all names was made for each: 10,000 stopped the event loop for 2.7 s, and 100,000 for 57 s."""
    requests = [IncrementalAlterConfigsRequest(resources=group_resources(count)) for count in (10_000, 100_000)]
    _, answers = await attack(own_broker, [request_bytes(request, 1) for request in requests])
    errors = [
        {each.error_code for each in decoded(answer, IncrementalAlterConfigsResponse, 1).responses}
        for answer in answers
    ]
    assert errors == [{NONE}, {POLICY_VIOLATION}]


async def test_very_many_passwords_in_one_request(own_broker: BrokerProcess) -> None:
    """100,000 stopped the event loop for 4.9 s while they were encrypted and read back."""
    upsertions = [
        ScramCredentialUpsertion(
            name=f"u{index}", mechanism=1, iterations=4096, salt=bytes(16), salted_password=bytes(32)
        )
        for index in range(100_000)
    ]
    requests = [AlterUserScramCredentialsRequest(upsertions=upsertions[:count]) for count in (10_000, 100_000)]
    _, answers = await attack(own_broker, [request_bytes(request, 0) for request in requests])
    errors = [
        {each.error_code for each in decoded(answer, AlterUserScramCredentialsResponse, 0).results}
        for answer in answers
    ]
    assert errors == [{NONE}, {POLICY_VIOLATION}]


async def test_quotas_of_very_many_users(own_broker: BrokerProcess) -> None:
    """100,000 stopped the event loop for 0.3 s."""
    entries = [
        AlterClientQuotasEntry(
            entity=[ClientQuotasEntity(entity_type="user", entity_name=f"u{index}")],
            ops=[AlterClientQuotasOp(key="producer_byte_rate", value=1e9, remove=False)],
        )
        for index in range(100_000)
    ]
    requests = [AlterClientQuotasRequest(entries=entries[:count]) for count in (10_000, 100_000)]
    _, answers = await attack(own_broker, [request_bytes(request, 1) for request in requests])
    errors = [{each.error_code for each in decoded(answer, AlterClientQuotasResponse, 1).entries} for answer in answers]
    assert errors == [{NONE}, {POLICY_VIOLATION}]


async def test_a_request_of_tagged_fields_alone(broker: BrokerProcess) -> None:
    """Eight million fields that nobody knows, of its header or its body, took some two seconds of the event loop."""
    count = 7_000_000
    tags = uvarint(count) + b"\x05\x00" * count
    plain = request_bytes(ListGroupsRequest(), 3)
    assert plain.endswith(b"\0\0")  # the tagged fields of header and body
    frames = [plain[4:-2] + tags + b"\0", plain[4:-1] + tags]
    _, answers = await attack(broker, [len(frame).to_bytes(4) + frame for frame in frames])
    assert answers == [None, None]


async def test_offsets_of_one_partition_looked_up_many_times(broker: BrokerProcess) -> None:
    """Each was a search through the log, for a few bytes of the request."""
    wanted = [ListOffsetsPartition(partition_index=0, timestamp=0)] * 100_000
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="bystander", partitions=wanted)])
    _, (answer,) = await attack(broker, [request_bytes(request, 7)])
    (topic,) = decoded(answer, ListOffsetsResponse, 7).topics
    assert {each.error_code for each in topic.partitions} == {INVALID_REQUEST}


async def test_a_fetch_of_very_many_partitions(broker: BrokerProcess) -> None:
    partitions = [
        FetchPartition(partition=index % 60_000, fetch_offset=0, partition_max_bytes=1) for index in range(120_000)
    ]
    topics = [FetchTopic(topic="nothing", partitions=partitions)]
    requests = [
        FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1, topics=topics, session_epoch=epoch) for epoch in (-1, 0)
    ]
    _, answers = await attack(broker, [request_bytes(request, 12) for request in requests])
    for answer in answers:
        (topic,) = decoded(answer, FetchResponse, 12).responses
        assert len(topic.partitions) == 60_000


async def test_one_metadata_request_auto_creates_topics_up_to_the_rate_limit() -> None:
    """All 9,999 were made, at once, and no other topic could be."""
    with broker_process(
        *timed_loop.fixed(auto_create_topics_per_minute_count=60), program=timed_loop.PROGRAM
    ) as broker:
        topics = [MetadataRequestTopic(name=f"t{index}") for index in range(9_999)]
        _, (answer,) = await attack(broker, [request_bytes(MetadataRequest(topics=topics), 12)])
        errors = Counter(topic.error_code for topic in decoded(answer, MetadataResponse, 12).topics)
        assert set(errors) == {NONE, LEADER_NOT_AVAILABLE}
        assert 5 <= errors[NONE] <= 30


async def test_one_request_can_not_create_partitions_without_end(own_broker: BrokerProcess) -> None:
    topics = [CreatableTopic(name=f"t{index}", num_partitions=5_000, replication_factor=1) for index in range(20)]
    _, (answer,) = await attack(own_broker, [request_bytes(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)])
    errors = Counter(topic.error_code for topic in decoded(answer, CreateTopicsResponse, 7).topics)
    assert errors == {NONE: 2, POLICY_VIOLATION: 18}
