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

This broker leads every partition. Its id fills replicas and ISR as often as the topic's replication factor says. A
created topic is durable and described in the same answer, not LEADER_NOT_AVAILABLE first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafscale.api.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from kafscale.api.calls import Api, Call
from kafscale.api.services import Services
from kafscale.cluster.node import Node
from kafscale.cluster.topic_names import is_internal, is_valid_topic_name
from kafscale.cluster.topics import NewTopic, Topic
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import (
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kafscale.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

NO_ID = bytes(16)


async def handle(services: Services, call: Call, request: MetadataRequest) -> MetadataResponse:
    if request.topics is None or (call.version == 0 and not request.topics):
        topics = [_describe(topic, services.node) for topic in services.topics.all()]
    else:
        refused = await _create_missing(services, request)
        topics = [_answer(services, asked, refused) for asked in _distinct(request.topics)]
    if request.include_topic_authorized_operations:
        for topic in topics:
            topic.topic_authorized_operations = TOPIC_OPERATIONS
    node, endpoint = services.node, services.node.endpoint(call.peer)
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=node.node_id, host=endpoint.host, port=endpoint.port)],
        cluster_id=node.cluster_id,
        controller_id=node.node_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _distinct(topics: Iterable[MetadataRequestTopic]) -> Iterable[MetadataRequestTopic]:
    return {(topic.topic_id, topic.name): topic for topic in topics}.values()


async def _create_missing(services: Services, request: MetadataRequest) -> Mapping[str, KafkaError]:
    """Create what was asked for by name, is not there and may be created. The errors of those that can't be."""
    if not (services.settings.auto_create_topics and request.allow_auto_topic_creation):
        return {}
    names = [
        topic.name
        for topic in _distinct(request.topics or ())
        if topic.topic_id == NO_ID
        and topic.name is not None
        and services.topics.get(topic.name) is None
        and not is_internal(topic.name)
    ]
    if not names:
        return {}
    outcomes = await services.topics.create(NewTopic(name=name) for name in names)
    return {name: outcome for name, outcome in zip(names, outcomes, strict=True) if isinstance(outcome, KafkaError)}


def _answer(
    services: Services, asked: MetadataRequestTopic, refused: Mapping[str, KafkaError]
) -> MetadataResponseTopic:
    if asked.topic_id != NO_ID:
        topic = services.topics.by_id(asked.topic_id)
        if topic is None:
            return MetadataResponseTopic(error_code=UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id)
        return _describe(topic, services.node)
    if asked.name is None:
        return MetadataResponseTopic(error_code=INVALID_REQUEST, name="")
    topic = services.topics.get(asked.name)  # also if another request created it while this one tried to
    if topic is not None:
        return _describe(topic, services.node)
    if asked.name in refused:
        error_code = refused[asked.name].code
    else:
        error_code = UNKNOWN_TOPIC_OR_PARTITION if is_valid_topic_name(asked.name) else INVALID_TOPIC_EXCEPTION
    return MetadataResponseTopic(error_code=error_code, name=asked.name, is_internal=is_internal(asked.name))


def _describe(topic: Topic, node: Node) -> MetadataResponseTopic:
    replicas = [node.node_id] * topic.replication_factor  # shared by all partitions: nobody changes an answer
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[
            MetadataResponsePartition(
                partition_index=index,
                leader_id=node.node_id,
                leader_epoch=node.broker_epoch,
                replica_nodes=replicas,
                isr_nodes=replicas,
            )
            for index in range(topic.partition_count)
        ],
    )


API = Api(3, "Metadata", 0, 12, MetadataRequest, MetadataResponse, handle)
