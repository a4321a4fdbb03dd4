"""ListPartitionReassignments (46, KIP-455): partitions that are moving to another leader.

v0  (flexible) of all topics, or of the partitions that are named

The new leader is answered as a replica that is added, the present one as a replica that is removed. A partition that
does not exist gives no error, as in Kafka. In fields of our own, the controller answers the load of each broker and
the partitions that balance would move.
"""

from __future__ import annotations

from collections.abc import Collection

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import named_partitions
from kafscale.api.handling.services import Services
from kafscale.cluster.membership.placement.choice import BalancePlan, Led
from kafscale.cluster.registries.topics import Topic
from kafscale.concurrency.turns import Turns
from kafscale.wire.messages.replicas import (
    BalancedBroker,
    BalanceRequest,
    BalanceResponse,
    BusyPartition,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    PlannedMove,
    ToldBalance,
)

UNKNOWN_LOAD = -1


async def handle(services: Services, call: Call, request: BalanceRequest) -> BalanceResponse:
    if request.wants_balance:
        await services.catch_up()  # another broker may have been told a moment ago what may move
    turns = Turns()
    topics = []
    for topic, indexes in await named_partitions(
        services, None if request.topics is None else ((of.name, of.partition_indexes) for of in request.topics)
    ):
        await turns.step()
        ongoing = _ongoing(services, topic, indexes)
        if ongoing:
            topics.append(OngoingTopicReassignment(name=topic.name, partitions=ongoing))
    return BalanceResponse(topics=topics, balance=_balance(services, request) if request.wants_balance else None)


def _ongoing(services: Services, topic: Topic, indexes: Collection[int]) -> list[OngoingPartitionReassignment]:
    ongoing = []
    for index, target in sorted(services.mover.targets(topic).items()):
        if index in indexes:
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


def _balance(services: Services, request: BalanceRequest) -> ToldBalance | None:
    """Return the plan of balance, or None if this broker is not the controller of several."""
    names = {topic.topic_id: topic.name for topic in services.topics.all()}
    released = {topic.topic_id for name in request.released if (topic := services.topics.get(name)) is not None}
    plan = services.plan_balance(None if request.releases_all else released)
    if plan is None:
        return None
    return ToldBalance(
        is_waiting=plan.is_waiting,
        brokers=[_balanced(plan, broker_id) for broker_id in sorted(plan.now)],
        busiest=[
            BusyPartition(topic=names[topic_id], partition_index=index, bytes_per_second=round(bytes_per_second))
            for topic_id, row in plan.loads.busiest.items()
            if topic_id in names
            for index, bytes_per_second in row.items()
        ],
        moves=[
            PlannedMove(topic=names[move.topic_id], partition_index=move.index, target=move.target)
            for move in plan.moves
            if move.topic_id in names
        ],
    )


def _balanced(plan: BalancePlan, broker_id: int) -> BalancedBroker:
    now, then = plan.now[broker_id], plan.then.get(broker_id, Led())
    is_known = plan.loads.is_known
    return BalancedBroker(
        broker_id=broker_id,
        bytes_per_second=round(now.bytes_per_second) if is_known else UNKNOWN_LOAD,
        partition_count=now.partition_count,
        planned_bytes_per_second=round(then.bytes_per_second) if is_known else UNKNOWN_LOAD,
        planned_partition_count=then.partition_count,
    )


API = Api(46, "ListPartitionReassignments", 0, 0, BalanceRequest, BalanceResponse, handle)
