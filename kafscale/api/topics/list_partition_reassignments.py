"""ListPartitionReassignments (46, KIP-455): partitions that are on their way to other replicas.

v0  (flexible) of all topics, or of the partitions that are named

Those are the partitions that are to be led by another broker than now; a broker that is alone has none. The new leader
is told as a replica that is added, and the present one as one that is removed. As in Kafka, a partition that does not
exist is no error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.cluster.mover import Mover
from kafscale.cluster.topics.topics import Topic
from kafscale.concurrency.turns import Turns, distinct_partitions
from kafscale.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


async def handle(
    services: Services, call: Call, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    mover = services.mover
    if mover is None:
        return ListPartitionReassignmentsResponse()
    turns = Turns()
    topics = []
    for topic, indexes in await _asked(services, request):
        await turns.step()
        ongoing = _ongoing(services, mover, topic, indexes)
        if ongoing:
            topics.append(OngoingTopicReassignment(name=topic.name, partitions=ongoing))
    return ListPartitionReassignmentsResponse(topics=topics)


async def _asked(
    services: Services, request: ListPartitionReassignmentsRequest
) -> Iterable[tuple[Topic, Collection[int] | None]]:
    """Topics that exist, each once, and the partitions that are asked for; None for all."""
    if request.topics is None:
        return [(topic, None) for topic in services.topics.all()]
    asked = await distinct_partitions(((wanted.name, wanted.partition_indexes) for wanted in request.topics), int)
    return [(topic, indexes) for name, indexes in asked.items() if (topic := services.topics.get(name)) is not None]


def _ongoing(
    services: Services, mover: Mover, topic: Topic, indexes: Collection[int] | None
) -> list[OngoingPartitionReassignment]:
    ongoing = []
    for index, target in sorted(mover.targets(topic).items()):
        if indexes is None or index in indexes:
            leader = services.assignment.leader(topic, index)
            present = [] if leader is None else [leader.node_id]
            ongoing.append(
                OngoingPartitionReassignment(
                    partition_index=index,
                    replicas=[target, *present],
                    adding_replicas=[target],
                    removing_replicas=present,
                )
            )
    return ongoing


API = Api(
    46,
    "ListPartitionReassignments",
    0,
    0,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    handle,
)
