"""DescribeQuorum (55, KIP-595): brokers with the metadata, and up to which offset (`kafka-metadata-quorum.sh
describe`).

v0  (flexible) leader, voters and observers of `__cluster_metadata-0`
v1  times of their last fetch (KIP-836)
v2  directories, error messages and the listeners of voters (KIP-853): the one that the client uses

There is no quorum: one broker at a time is the controller, by its claim in the bucket. It is answered as leader and
only voter, the other brokers as observers. The leader epoch is that of its claim. Offsets are revisions of the metadata
that this broker has; those of other observers are not known here. Any other partition is unknown.
"""

from __future__ import annotations

import time

from kafscale.api.handling.calls import Api, Call, Peer
from kafscale.api.handling.partitions import reachable_broker
from kafscale.api.handling.services import Services
from kafscale.cluster.membership.node import Node as BrokerNode
from kafscale.cluster.registries.topic_names import CLUSTER_METADATA_NAME
from kafscale.concurrency.turns import distinct_partitions
from kafscale.wire.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from kafscale.wire.messages.cluster import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumListener,
    QuorumNode,
    QuorumPartitionData,
    QuorumReplicaState,
    QuorumTopicData,
)
from kafscale.wire.schema import mapped

UNKNOWN_EPOCH = UNKNOWN_OFFSET = -1


async def handle(services: Services, call: Call, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    asked = await distinct_partitions(
        ((topic.topic_name, topic.partitions) for topic in request.topics), lambda wanted: wanted.partition_index
    )
    if {name: list(indexes) for name, indexes in asked.items()} != {CLUSTER_METADATA_NAME: [0]}:
        return DescribeQuorumResponse(
            topics=[
                QuorumTopicData(topic_name=name, partitions=mapped(_unknown, tuple(of))) for name, of in asked.items()
            ]
        )
    return DescribeQuorumResponse(
        topics=[QuorumTopicData(topic_name=CLUSTER_METADATA_NAME, partitions=[_metadata(services)])],
        nodes=_nodes(services, call.peer),
    )


def _unknown(index: int) -> QuorumPartitionData:
    return QuorumPartitionData(
        partition_index=index,
        error_code=UNKNOWN_TOPIC_OR_PARTITION,
        error_message="This server does not host this topic-partition.",
    )


def _metadata(services: Services) -> QuorumPartitionData:
    controller = _controller(services)
    revision, now_ms = services.topics.store.revision, time.time_ns() // 1_000_000
    voter = QuorumReplicaState(
        replica_id=services.assignment.controller_id,
        log_end_offset=revision,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    return QuorumPartitionData(
        partition_index=0,
        leader_id=voter.replica_id,
        leader_epoch=UNKNOWN_EPOCH if controller is None else controller.broker_epoch,
        high_watermark=revision,
        current_voters=[voter],
        observers=[
            QuorumReplicaState(
                replica_id=node.node_id,
                log_end_offset=revision if node.node_id == services.node.node_id else UNKNOWN_OFFSET,
            )
            for node in services.assignment.brokers()
            if node.node_id != voter.replica_id
        ],
    )


def _controller(services: Services) -> BrokerNode | None:
    brokers = services.assignment.brokers()
    return next((node for node in brokers if node.node_id == services.assignment.controller_id), None)


def _nodes(services: Services, peer: Peer) -> list[QuorumNode]:
    controller = reachable_broker(services, services.assignment.controller_id, peer)
    if controller is None:
        return []
    listener = QuorumListener(name=peer.listener_name, host=controller.at.host, port=controller.at.port)
    return [QuorumNode(node_id=controller.node.node_id, listeners=[listener])]


API = Api(55, "DescribeQuorum", 0, 2, DescribeQuorumRequest, DescribeQuorumResponse, handle)
