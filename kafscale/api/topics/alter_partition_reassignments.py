"""AlterPartitionReassignments (45, KIP-455): move partitions to other replicas, or stop moves.

v0  (flexible) the replicas of each partition; null stops what is under way
v1  may forbid that the replication factor changes (KIP-860)

The replicas of a partition are, as in Metadata, the broker that leads it, as often as the topic's replication factor
says, until it is assigned to others. The first of these is then to lead the partition whenever it serves, and balance
leaves it there. A move copies nothing: the object store has the records. The other replicas mean nothing, but they must
be known brokers, and as many as before, or else the answer is INVALID_REPLICATION_FACTOR.

Stopping a move keeps the partition where it is. Without a move, it takes back an earlier assignment: any broker may
lead the partition then. Without an assignment, the answer is NO_REASSIGNMENT_IN_PROGRESS. A lone broker moves nothing.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import partial

import attrs

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import know_topics
from kafscale.api.handling.services import Services
from kafscale.api.topics.new_partitions import At, check_brokers, decide_together, know_brokers
from kafscale.cluster.membership.placement.administration import Mover
from kafscale.cluster.registries.topics import Topic
from kafscale.concurrency.turns import distinct_partitions, in_turns
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import (
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    NO_REASSIGNMENT_IN_PROGRESS,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kafscale.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kafscale.wire.schema import mapped


@attrs.frozen(eq=False, repr=False)
class _Moved:
    """The moving and the assigned partitions of a topic. Finding them looks at all, so a request does it once."""

    moving: Container[int]
    assigned: Container[int]

    @classmethod
    def of(cls, mover: Mover, topic: Topic | None) -> _Moved:
        return cls((), ()) if topic is None else cls(mover.targets(topic), mover.assigned(topic))


async def handle(
    services: Services, call: Call, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    asked = await distinct_partitions(
        ((topic.name, topic.partitions) for topic in request.topics), lambda wanted: wanted.partition_index
    )
    await know_topics(services, asked)
    await know_brokers(
        services, (partition.replicas or () for wanted in asked.values() for partition in wanted.values())
    )
    moved = {name: _Moved.of(services.mover, services.topics.get(name)) async for name in in_turns(asked)}

    async def reassign(at: At) -> None:
        name, index = at
        await _reassign(services, _topic(services, name, index), asked[name][index], moved[name])

    refusals = await decide_together(reassign, [(name, index) for name, indexes in asked.items() for index in indexes])
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=[
            ReassignableTopicResponse(name=name, partitions=mapped(partial(_answer, refusals, name), tuple(indexes)))
            for name, indexes in asked.items()
        ],
    )


def _answer(refusals: Mapping[At, KafkaError | None], name: str, index: int) -> ReassignablePartitionResponse:
    answer = ReassignablePartitionResponse(partition_index=index)
    refusal = refusals[name, index]
    if refusal is not None:
        answer.error_code, answer.error_message = refusal.code, refusal.message
    return answer


def _topic(services: Services, name: str, index: int) -> Topic:
    topic = services.topics.get(name)
    if topic is None:
        raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= index < topic.partition_count:
        raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    return topic


async def _reassign(services: Services, topic: Topic, wanted: ReassignablePartition, moved: _Moved) -> None:
    index, mover = wanted.partition_index, services.mover
    leader = services.assignment.leader(topic, index)
    if wanted.replicas is not None:
        _check(services, topic, wanted.replicas)
        await mover.move(topic, index, wanted.replicas)
    elif index in moved.moving and leader is not None:
        await mover.stay(topic, index)
    elif index in moved.assigned and index not in moved.moving:
        await mover.release(topic, index)
    else:
        raise KafkaError(NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")


def _check(services: Services, topic: Topic, replicas: Sequence[int]) -> None:
    check_brokers(replicas, [node.node_id for node in services.assignment.brokers()])
    if len(replicas) > topic.replication_factor and len(set(replicas)) < len(replicas):
        raise KafkaError(
            INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes the broker {replicas[0]} more than once.",
        )
    if len(replicas) != topic.replication_factor:
        raise KafkaError(
            INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {topic.replication_factor} to {len(replicas)}",
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
