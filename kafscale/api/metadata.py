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

This broker leads every partition. Its id fills replicas and ISR as often as the topic's replication factor says. So
topics with as many partitions and replicas share them, encoded once. A created topic is durable and described in the
same answer, not LEADER_NOT_AVAILABLE first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import attrs

from kafscale.api.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from kafscale.api.calls import Api, Call
from kafscale.api.services import Services
from kafscale.cluster.topics.names import is_internal, is_valid_topic_name
from kafscale.cluster.topics.topics import NewTopic, Topic
from kafscale.errors import KafkaError
from kafscale.wire.codec import encode_array
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
from kafscale.wire.schema import EncodedArray

NO_ID = bytes(16)
KEPT_PARTITIONS_MAX_COUNT = 10_000  # of a topic whose encoded partitions are kept: 26 bytes each, 8 more for a replica
KEPT_LAYOUTS_COUNT = 64


async def handle(services: Services, call: Call, request: MetadataRequest) -> MetadataResponse:
    if request.topics is None or (call.version == 0 and not request.topics):
        topics = [_describe(services, topic, call.version) for topic in services.topics.all()]
    else:
        refused = await _create_missing(services, request)
        topics = [_answer(services, asked, refused, call.version) for asked in _distinct(request.topics)]
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
    services: Services, asked: MetadataRequestTopic, refused: Mapping[str, KafkaError], version: int
) -> MetadataResponseTopic:
    if asked.topic_id != NO_ID:
        topic = services.topics.by_id(asked.topic_id)
        if topic is None:
            return MetadataResponseTopic(error_code=UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id)
        return _describe(services, topic, version)
    if asked.name is None:
        return MetadataResponseTopic(error_code=INVALID_REQUEST, name="")
    topic = services.topics.get(asked.name)  # also if another request created it while this one tried to
    if topic is not None:
        return _describe(services, topic, version)
    if asked.name in refused:
        error_code = refused[asked.name].code
    else:
        error_code = UNKNOWN_TOPIC_OR_PARTITION if is_valid_topic_name(asked.name) else INVALID_TOPIC_EXCEPTION
    return MetadataResponseTopic(error_code=error_code, name=asked.name, is_internal=is_internal(asked.name))


def _describe(services: Services, topic: Topic, version: int) -> MetadataResponseTopic:
    node = services.node
    layout = _Layout(
        partition_count=topic.partition_count,
        replication_factor=topic.replication_factor,
        node_id=node.node_id,
        leader_epoch=node.broker_epoch,
    )
    encode = _kept_partitions if topic.partition_count <= KEPT_PARTITIONS_MAX_COUNT else _partitions
    encoded = encode(layout, version)
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=encoded,  # type: ignore[arg-type] # a list when decoded
    )


@attrs.frozen(kw_only=True)
class _Layout:
    """All that the partitions of a topic depend on, so that topics share them."""

    partition_count: int
    replication_factor: int
    node_id: int
    leader_epoch: int


def _partitions(layout: _Layout, version: int) -> EncodedArray:
    replicas = [layout.node_id] * layout.replication_factor
    partitions = [
        MetadataResponsePartition(
            partition_index=index,
            leader_id=layout.node_id,
            leader_epoch=layout.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=replicas,
        )
        for index in range(layout.partition_count)
    ]
    return encode_array(partitions, MetadataResponse, version)


_kept_partitions = lru_cache(KEPT_LAYOUTS_COUNT)(_partitions)


API = Api(3, "Metadata", 0, 12, MetadataRequest, MetadataResponse, handle)
