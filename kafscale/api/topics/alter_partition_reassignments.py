"""AlterPartitionReassignments (45, KIP-455): move partitions to other replicas, or stop that.

v0  (flexible) the replicas of each partition; null stops what is under way
v1  may forbid that the replication factor changes (KIP-860)

A partition's replicas are, as Metadata has them, the broker that leads it, as often as the topic's replication factor
says, until it is assigned to others. The first of these is to lead the partition from then on, whenever it serves: what
balances brokers leaves it there. The move takes nothing along, as the object store has the copies. So which brokers
come after the first means nothing, but they have to be there, and as many as before, or else it is
INVALID_REPLICATION_FACTOR. To stop a move is to have the partition stay where it is. Where nothing is on its way, and
the partition was assigned before, it takes that back: from then on any broker may lead it, as balance wants. Where it
was not, it is NO_REASSIGNMENT_IN_PROGRESS. A broker that is alone moves nothing.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import partial

import attrs
import trio

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import know_topics
from kafscale.api.handling.services import Services
from kafscale.api.topics.new_partitions import check_brokers, know_brokers
from kafscale.cluster.membership.placement.mover import Mover
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

AT_ONCE_COUNT = 256  # partitions that are decided about together


@attrs.frozen(eq=False, repr=False)
class _Moved:
    """Partitions of a topic that move, and those that were assigned.

    Who tells that looks at all of them, so it is asked once for a request.
    """

    on_their_way: Container[int]
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
    refusals: dict[tuple[str, int], KafkaError] = {}
    moved = {name: _Moved.of(services.mover, services.topics.get(name)) async for name in in_turns(asked)}
    wanted = [(name, partition) for name, partitions in asked.items() for partition in partitions.values()]
    for first in range(0, len(wanted), AT_ONCE_COUNT):
        async with trio.open_nursery() as nursery:  # what is decided at the same time shares a commit
            for name, partition in wanted[first : first + AT_ONCE_COUNT]:
                nursery.start_soon(_decide, services, name, partition, moved[name], refusals)
    responses = [
        ReassignableTopicResponse(name=name, partitions=mapped(partial(_answer, refusals, name), tuple(partitions)))
        for name, partitions in asked.items()
    ]
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, responses=responses
    )


def _answer(refusals: Mapping[tuple[str, int], KafkaError], name: str, index: int) -> ReassignablePartitionResponse:
    answer = ReassignablePartitionResponse(partition_index=index)
    refusal = refusals.get((name, index))
    if refusal is not None:
        answer.error_code, answer.error_message = refusal.code, refusal.message
    return answer


async def _decide(
    services: Services,
    name: str,
    wanted: ReassignablePartition,
    moved: _Moved,
    refusals: dict[tuple[str, int], KafkaError],
) -> None:
    """Move a partition, or have it stay; note why it can't be."""
    try:
        topic = _topic(services, name, wanted.partition_index)
        await _reassign(services, topic, wanted, moved)
    except KafkaError as exc:
        refusals[name, wanted.partition_index] = exc.kept()


def _topic(services: Services, name: str, index: int) -> Topic:
    """Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
    topic = services.topics.get(name)
    if topic is None:
        raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= index < topic.partition_count:
        raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    return topic


async def _reassign(services: Services, topic: Topic, wanted: ReassignablePartition, moved: _Moved) -> None:
    """Return when the partition has its new leader, or will. Raises KafkaError."""
    index, mover = wanted.partition_index, services.mover
    leader = services.assignment.leader(topic, index)
    if wanted.replicas is not None:
        _check(services, topic, wanted.replicas)
        await mover.move(topic, index, wanted.replicas)
    elif index in moved.on_their_way and leader is not None:
        await mover.stay(topic, index)
    elif index in moved.assigned and index not in moved.on_their_way:
        await mover.release(topic, index)
    else:
        raise KafkaError(NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")


def _check(services: Services, topic: Topic, replicas: Sequence[int]) -> None:
    """Raises KafkaError unless a partition can have these replicas."""
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
