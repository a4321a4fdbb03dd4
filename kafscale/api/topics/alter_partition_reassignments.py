"""AlterPartitionReassignments (45, KIP-455): move partitions to other replicas, or stop that.

v0  (flexible) the replicas of each partition; null stops what is under way
v1  may forbid that the replication factor changes (KIP-860)

A partition's replicas are, as Metadata has them, the broker that leads it, as often as the topic's replication factor
says. To assign those changes nothing, and succeeds. Others are refused, with INVALID_REPLICA_ASSIGNMENT, or, if only
their number differs, INVALID_REPLICATION_FACTOR: copies are the object store's. So nothing is ever under way that could
be stopped, which is NO_REASSIGNMENT_IN_PROGRESS.
"""

from __future__ import annotations

from functools import partial

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.api.topics.replica_assignments import check_brokers
from kafscale.cluster.topics.topics import Topic
from kafscale.concurrency.turns import distinct_partitions
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import (
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    NO_REASSIGNMENT_IN_PROGRESS,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kafscale.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kafscale.wire.schema import mapped


async def handle(
    services: Services, call: Call, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    asked = await distinct_partitions(
        ((topic.name, topic.partitions) for topic in request.topics), lambda wanted: wanted.partition_index
    )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=[
            ReassignableTopicResponse(
                name=name, partitions=mapped(partial(_answer, services, name), tuple(partitions.values()))
            )
            for name, partitions in asked.items()
        ],
    )


def _answer(services: Services, name: str, wanted: ReassignablePartition) -> ReassignablePartitionResponse:
    answer = ReassignablePartitionResponse(partition_index=wanted.partition_index)
    try:
        topic = _topic(services, name, wanted.partition_index)
        _check(services, topic, wanted)
    except KafkaError as exc:
        answer.error_code, answer.error_message = exc.code, exc.message
    return answer


def _topic(services: Services, name: str, index: int) -> Topic:
    """Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
    topic = services.topics.get(name)
    if topic is None:
        raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= index < topic.partition_count:
        raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    return topic


def _check(services: Services, topic: Topic, wanted: ReassignablePartition) -> None:
    """Return if the partition has these replicas. Raises KafkaError."""
    if wanted.replicas is None:
        raise KafkaError(NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    check_brokers(wanted.replicas, [node.node_id for node in services.assignment.brokers()])
    leader = services.assignment.leader(topic, wanted.partition_index)
    others = [broker_id for broker_id in wanted.replicas if leader is None or broker_id != leader.node_id]
    if others:
        raise KafkaError(
            INVALID_REPLICA_ASSIGNMENT,
            f"{topic.name}-{wanted.partition_index} can't be moved to broker {others[0]}: a partition's replica is the "
            "broker that leads it, and its records are in the object store.",
        )
    if len(wanted.replicas) > topic.replication_factor:
        raise KafkaError(
            INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes the broker {wanted.replicas[0]} more than once.",
        )
    if len(wanted.replicas) < topic.replication_factor:
        raise KafkaError(
            INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {topic.replication_factor} to {len(wanted.replicas)}",
        )


API = Api(
    45,
    "AlterPartitionReassignments",
    0,
    1,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    handle,
)
