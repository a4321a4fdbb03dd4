"""Which APIs know a topic that another broker has just created, or one that has joined, as soon as they are asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kafscale.api.cluster import describe_topic_partitions, metadata
from kafscale.api.configs import alter_configs, describe_configs, incremental_alter_configs
from kafscale.api.groups import offset_commit
from kafscale.api.handling.calls import Api
from kafscale.api.topics import (
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_topics,
    elect_leaders,
)
from kafscale.cluster.groups.coordinator import GroupCoordinator
from kafscale.cluster.membership.node import Node
from kafscale.cluster.registries.topics import NewTopic, TopicRegistry
from kafscale.config import Settings
from kafscale.wire import error_codes as e
from kafscale.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from kafscale.wire.messages.offsets import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from kafscale.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    ElectedTopicPartitions,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kafscale.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    TopicRequest,
)
from tests.api.assignments import OTHER_ID, TwoBrokers
from tests.api.handlers import LOCAL_LOG, ask, some_services
from tests.cluster.groups.group_log import MemoryOffsetsLog
from tests.cluster.late_metadata import LateMetadataStore, compete

NODE = Node(node_id=7, cluster_id="c", broker_epoch=0, advertised={})
KNOWN, NEW, MISSING = "known", "new", "missing"
TOPIC = 2


@attrs.define
class Asked:
    """One API that is asked about a topic, and the error code in its answer."""

    api: Api
    request: Callable[[str, bytes], object]
    error_code: Callable[[Any], int]
    version: int | None = None
    success: int = e.NONE

    @property
    def name(self) -> str:
        return f"{self.api.name}-{self.version}"


def _config(request: Any, resource: Any, name: str) -> object:
    return request(resources=[resource(resource_type=TOPIC, resource_name=name, configs=[])], validate_only=False)


def _commit(name: str, topic_id: bytes) -> OffsetCommitRequest:
    partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    topic = OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=partitions)
    return OffsetCommitRequest(group_id="g", member_id="", topics=[topic])


ASKED = [
    Asked(
        metadata.API,
        lambda name, _: MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False),
        lambda answer: answer.topics[0].error_code,
    ),
    Asked(
        metadata.API,
        lambda _, topic_id: MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=None)]),
        lambda answer: answer.topics[0].error_code,
        version=12,
    ),
    Asked(
        describe_topic_partitions.API,
        lambda name, _: DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name)]),
        lambda answer: answer.topics[0].error_code,
    ),
    Asked(
        delete_topics.API,
        lambda name, _: DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1),
        lambda answer: answer.responses[0].error_code,
    ),
    Asked(
        delete_topics.API,
        lambda name, _: DeleteTopicsRequest(topic_names=[name], timeout_ms=1),
        lambda answer: answer.responses[0].error_code,
        version=1,
    ),
    Asked(
        create_partitions.API,
        lambda name, _: CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=9, assignments=None)], timeout_ms=1
        ),
        lambda answer: answer.results[0].error_code,
    ),
    Asked(
        alter_configs.API,
        lambda name, _: _config(AlterConfigsRequest, AlterConfigsResource, name),
        lambda answer: answer.responses[0].error_code,
    ),
    Asked(
        incremental_alter_configs.API,
        lambda name, _: _config(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResource, name),
        lambda answer: answer.responses[0].error_code,
    ),
    Asked(
        describe_configs.API,
        lambda name, _: DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=None)]
        ),
        lambda answer: answer.results[0].error_code,
    ),
    Asked(
        elect_leaders.API,
        lambda name, _: ElectLeadersRequest(topic_partitions=[ElectedTopicPartitions(topic=name, partitions=[0])]),
        lambda answer: answer.replica_election_results[0].partition_result[0].error_code,
        success=e.ELECTION_NOT_NEEDED,
    ),
    Asked(
        alter_partition_reassignments.API,
        lambda name, _: AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(
                    name=name, partitions=[ReassignablePartition(partition_index=0, replicas=[NODE.node_id])]
                )
            ]
        ),
        lambda answer: answer.responses[0].partitions[0].error_code,
    ),
    Asked(offset_commit.API, _commit, lambda answer: answer.topics[0].partitions[0].error_code, version=9),
    Asked(offset_commit.API, _commit, lambda answer: answer.topics[0].partitions[0].error_code, version=10),
]


@attrs.define(eq=False)
class Late:
    """A broker that has not heard of a topic that another one has made, and how often it has caught up."""

    store: LateMetadataStore
    services: Any
    topic_ids: dict[str, bytes]
    caught_up_count: int = 0

    async def catch_up(self) -> None:
        self.caught_up_count += 1
        self.store.tell()
        await wait_all_tasks_blocked()

    async def ask(self, asked: Asked, name: str) -> int:
        answers = []

        async def one() -> None:
            request = asked.request(name, self.topic_ids[name])
            answers.append(await ask(asked.api, self.services, request, version=asked.version))

        await compete(self.store, one)
        return asked.error_code(answers[0])


@pytest.fixture
async def late(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> Late:
    store = LateMetadataStore()
    topics, others = TopicRegistry(store=store), TopicRegistry(store=store)
    for each in (topics, others):
        await each.load()
    await compete(store, lambda: others.create([NewTopic(name=KNOWN)]))
    offsets_log = MemoryOffsetsLog()
    groups = GroupCoordinator(offsets_log, Settings(), partition_count=offsets_log.known_count, draining=trio.Event())
    offsets_log.load(groups)
    await nursery.start(groups.run)
    services = some_services(
        node=NODE, topics=topics, groups=groups, assignment=TwoBrokers(NODE), settings=Settings(), internal=LOCAL_LOG
    )
    nursery.start_soon(others.create, [NewTopic(name=NEW, topic_id=bytes(15) + b"n")])
    await wait_all_tasks_blocked()
    known = topics.get(KNOWN)
    assert known is not None
    assert topics.get(NEW) is None
    found = Late(store, services, {KNOWN: known.topic_id, NEW: bytes(15) + b"n", MISSING: bytes(15) + b"m"})
    services.catch_up = found.catch_up
    return found


every_api = pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked.name)


@every_api
async def test_a_topic_another_broker_just_created_is_found_by_catching_up(late: Late, asked: Asked) -> None:
    assert await late.ask(asked, NEW) == asked.success
    assert late.caught_up_count == 1


@every_api
async def test_a_request_for_a_local_topic_does_not_catch_up(late: Late, asked: Asked) -> None:
    assert await late.ask(asked, KNOWN) == asked.success
    assert late.caught_up_count == 0


@every_api
async def test_a_missing_topic_is_looked_for_once(late: Late, asked: Asked) -> None:
    assert await late.ask(asked, MISSING) in (e.UNKNOWN_TOPIC_OR_PARTITION, e.UNKNOWN_TOPIC_ID)
    assert late.caught_up_count == 1


async def test_a_topic_that_another_broker_has_just_made_was_created_once_more(late: Late) -> None:
    """With the partitions of whoever asked, and refused then as one that there is already."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=NEW)], allow_auto_topic_creation=True)
    answers: list[Any] = []

    async def one() -> None:
        answers.append(await ask(metadata.API, late.services, request))

    revision = late.store.committed_revision
    await compete(late.store, one)
    assert answers[0].topics[0].topic_id == late.topic_ids[NEW]
    assert late.store.committed_revision == revision


LED_BY_ANOTHER = [
    (
        create_topics.API,
        CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name="more",
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[OTHER_ID])],
                )
            ],
            timeout_ms=1,
            validate_only=True,
        ),
        lambda answer: answer.topics[0].error_message,
    ),
    (
        create_partitions.API,
        CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(
                    name=KNOWN, count=2, assignments=[CreatePartitionsAssignment(broker_ids=[OTHER_ID])]
                )
            ],
            timeout_ms=1,
            validate_only=True,
        ),
        lambda answer: answer.results[0].error_message,
    ),
    (
        alter_partition_reassignments.API,
        AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(
                    name=KNOWN, partitions=[ReassignablePartition(partition_index=0, replicas=[OTHER_ID])]
                )
            ]
        ),
        lambda answer: answer.responses[0].partitions[0].error_message,
    ),
]


@pytest.mark.parametrize(("api", "request_", "message"), LED_BY_ANOTHER, ids=lambda each: getattr(each, "name", ""))
async def test_partitions_can_be_assigned_to_a_broker_that_has_just_joined(
    late: Late, api: Api, request_: object, message: Callable[[Any], str | None]
) -> None:
    """It was no such broker until its record had been heard of, some tenths of a second later."""
    late.services.assignment.other_is_up = False

    async def catch_up() -> None:
        late.caught_up_count += 1
        late.services.assignment.other_is_up = late.caught_up_count == 2

    late.services.catch_up = catch_up
    for is_known in (False, True):
        answer = await ask(api, late.services, request_)
        assert ("no such broker is registered" in (message(answer) or "")) is not is_known
    await ask(api, late.services, request_)
    assert late.caught_up_count == 2  # whom it knows costs no look
