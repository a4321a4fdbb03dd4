"""Metadata (3): brokers, and where the partitions of topics are. Creates topics that are asked for, where allowed.

v0  no topics means all of them
v1  null means all and empty none; controller id, racks, internal topics
v2  cluster id
v4  the client says whether a topic may be created
v5  offline replicas
v7  leader epochs
v8  authorized operations of topics and of the cluster
v9  flexible
v10 topic ids in the answer
v11 no more authorized operations of the cluster (DescribeCluster has them)
v12 topics may be asked for by id
v13 an error code of the whole, which is always 0: no client is told to bootstrap again

The leader fills replicas and ISR as often as the topic's replication factor says. An answer has only brokers that the
client can connect to by its listener. A partition without such a leader is LEADER_NOT_AVAILABLE, and its replica the
broker that it waits for. Topics with the same layout share their encoded partitions.

A topic that is created for a client is durable and described in the first answer. Kafka's first answer is an error,
after which clients ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

import attrs

from kafscale.api.handling.access import NOT_ASKED
from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import reachable_brokers
from kafscale.api.handling.services import Services
from kafscale.cluster.membership.assignment import Assignment, Leader
from kafscale.cluster.registries.topic_names import is_internal, is_valid_topic_name
from kafscale.cluster.registries.topics import Topic, TopicRegistry
from kafscale.concurrency.turns import distinct, in_turns
from kafscale.errors import StoreError
from kafscale.security.acls import CREATE_IN_CLUSTER, CREATE_TOPIC, DESCRIBE_CLUSTER, DESCRIBE_TOPIC, ResourceType
from kafscale.wire.codec import encode_array
from kafscale.wire.error_codes import (
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    LEADER_NOT_AVAILABLE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kafscale.wire.messages.topics import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kafscale.wire.schema import EncodedArray, mapped

NO_BROKER = -1


@attrs.frozen(kw_only=True)
class Layout:
    """Everything that the answered partitions of a topic depend on, so that topics can share them.

    `waiting` has the broker that each partition waits for, or NO_BROKER; it is empty if all are led. `brokers` are
    those that the client can connect to.
    """

    partition_count: int
    replication_factor: int
    leaders: tuple[Leader | None, ...]
    brokers: frozenset[int]
    waiting: tuple[int, ...] = ()

    @classmethod
    def of(cls, topic: Topic, assignment: Assignment, brokers: frozenset[int]) -> Layout:
        waiting = assignment.waiting(topic)
        return cls(
            partition_count=topic.partition_count,
            replication_factor=topic.replication_factor,
            leaders=assignment.leaders(topic),
            brokers=brokers,
            waiting=tuple(waiting.get(index, NO_BROKER) for index in range(topic.partition_count)) if waiting else (),
        )

    def leader(self, index: int) -> Leader | None:
        leader = self.leaders[index if len(self.leaders) > 1 else 0]
        return leader if leader is not None and leader.node_id in self.brokers else None

    def offline(self, index: int) -> list[int]:
        """Return the replicas of a partition without a leader: the known broker that it waits for."""
        broker_id = self.waiting[index] if self.waiting else NO_BROKER
        return [] if broker_id == NO_BROKER else [broker_id] * self.replication_factor

    def replicas(self, leader: Leader) -> list[int]:
        """Return the replicas of a partition: the assigned ones, or the leader, as often as the replication factor."""
        return list(leader.replicas) or [leader.node_id] * self.replication_factor


NO_ID = bytes(16)
KEPT_PARTITIONS_MAX_COUNT = 10_000  # of a topic with kept encoded partitions: 26 bytes each, 8 more for a replica
KEPT_LAYOUTS_COUNT = 64


async def handle(services: Services, call: Call, request: MetadataRequest) -> MetadataResponse:
    brokers = reachable_brokers(services, call.peer)
    ids = frozenset(broker.node.node_id for broker in brokers)
    describe = partial(_describe, services, call, request.include_topic_authorized_operations, ids)
    if request.topics is None or (call.version == 0 and not request.topics):
        topics = mapped(describe, await _visible(services, call))
    else:
        asked = await distinct(request.topics, lambda topic: (topic.topic_id, topic.name))
        missing = await _missing(services, asked)
        if missing:
            await services.catch_up()
        refused = await _create_missing(services, call, missing) if request.allow_auto_topic_creation else {}
        topics = mapped(partial(_answer, services, call, describe, refused), asked)
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=broker.node.node_id, host=broker.at.host, port=broker.at.port, rack=broker.node.rack
            )
            for broker in brokers
        ],
        cluster_id=services.node.cluster_id,
        controller_id=services.assignment.controller_id,
        topics=topics,
        cluster_authorized_operations=cluster_operations(services, call, request.include_cluster_authorized_operations),
    )


def cluster_operations(services: Services, call: Call, is_asked: bool) -> int:
    """Return the client's operations on the cluster in bits (KIP-430), 0 without the right to describe it."""
    if not is_asked:
        return NOT_ASKED
    access = services.access
    return access.operations(call, ResourceType.CLUSTER) if access.allows(call, DESCRIBE_CLUSTER) else 0


async def _visible(services: Services, call: Call) -> Sequence[Topic]:
    topics = services.topics.all()
    if services.access.authorizer is None:
        return topics
    allows = partial(services.access.allows, call, DESCRIBE_TOPIC, tells=False)
    return [topic async for topic in in_turns(topics) if allows(topic.name)]


async def _missing(services: Services, asked: Sequence[MetadataRequestTopic]) -> Sequence[MetadataRequestTopic]:
    return [topic async for topic in in_turns(asked) if not _is_known(services.topics, topic)]


def _is_known(topics: TopicRegistry, asked: MetadataRequestTopic) -> bool:
    if asked.topic_id != NO_ID:
        return topics.by_id(asked.topic_id) is not None
    return asked.name is None or topics.get(asked.name) is not None


async def _create_missing(services: Services, call: Call, asked: Sequence[MetadataRequestTopic]) -> Mapping[str, int]:
    if not services.settings.auto_create_topics:
        return {}
    missing = [
        topic.name
        async for topic in in_turns(asked)
        if topic.topic_id == NO_ID
        and topic.name is not None
        and services.topics.get(topic.name) is None
        and not is_internal(topic.name)
        and services.access.allows(call, DESCRIBE_TOPIC, topic.name, tells=False)
    ]
    refused: dict[str, int] = {}
    if not services.access.allows(call, CREATE_IN_CLUSTER, tells=False):
        codes = {name: services.access.error_code(call, CREATE_TOPIC, name) async for name in in_turns(missing)}
        refused = {name: code for name, code in codes.items() if code}
        missing = [name for name in missing if name not in refused]
    charges = services.quotas.charges(call, strict_since=0)
    try:
        created = await services.topics.create_in_passing(missing, charge=charges.charge)
    except StoreError:  # clients ask again
        created = dict.fromkeys(missing, LEADER_NOT_AVAILABLE)
    return {**refused, **created}


def _answer(
    services: Services,
    call: Call,
    describe: Callable[[Topic], MetadataResponseTopic],
    refused: Mapping[str, int],
    asked: MetadataRequestTopic,
) -> MetadataResponseTopic:
    if asked.topic_id != NO_ID:
        topic = services.topics.by_id(asked.topic_id)
        if topic is None:
            return MetadataResponseTopic(error_code=UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id)
        if not services.access.allows(call, DESCRIBE_TOPIC, topic.name):  # the id is public, the name is not
            return MetadataResponseTopic(error_code=TOPIC_AUTHORIZATION_FAILED, name=None, topic_id=asked.topic_id)
        return describe(topic)
    if asked.name is None:
        return MetadataResponseTopic(error_code=INVALID_REQUEST, name="")
    if not services.access.allows(call, DESCRIBE_TOPIC, asked.name):  # nor whether there is one
        return MetadataResponseTopic(error_code=TOPIC_AUTHORIZATION_FAILED, name=asked.name)
    topic = services.topics.get(asked.name)  # another request may have created it meanwhile
    if topic is not None:
        return describe(topic)
    error_code = refused.get(asked.name)
    if error_code is None:
        error_code = UNKNOWN_TOPIC_OR_PARTITION if is_valid_topic_name(asked.name) else INVALID_TOPIC_EXCEPTION
    return MetadataResponseTopic(error_code=error_code, name=asked.name, is_internal=is_internal(asked.name))


def _describe(
    services: Services, call: Call, with_operations: bool, brokers: frozenset[int], topic: Topic
) -> MetadataResponseTopic:
    layout = Layout.of(topic, services.assignment, brokers)
    kept = topic.partition_count <= KEPT_PARTITIONS_MAX_COUNT
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=_kept_partitions(layout, call.version) if kept else _partitions(layout),  # type: ignore[arg-type] # a list
        topic_authorized_operations=(
            services.access.operations(call, ResourceType.TOPIC, topic.name) if with_operations else NOT_ASKED
        ),
    )


@lru_cache(KEPT_LAYOUTS_COUNT)
def _kept_partitions(layout: Layout, version: int) -> EncodedArray:
    return encode_array(list(_partitions(layout)), MetadataResponse, version)


def _partitions(layout: Layout) -> list[MetadataResponsePartition]:
    return mapped(partial(_partition, layout), range(layout.partition_count))


def _partition(layout: Layout, index: int) -> MetadataResponsePartition:
    leader = layout.leader(index)
    if leader is None:
        offline = layout.offline(index)
        return MetadataResponsePartition(
            error_code=LEADER_NOT_AVAILABLE, partition_index=index, replica_nodes=offline, offline_replicas=offline
        )
    replicas = layout.replicas(leader)
    return MetadataResponsePartition(
        partition_index=index,
        leader_id=leader.node_id,
        leader_epoch=leader.epoch,
        replica_nodes=replicas,
        isr_nodes=replicas,
    )


API = Api(3, "Metadata", 0, 13, MetadataRequest, MetadataResponse, handle)
