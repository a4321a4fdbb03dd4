"""Manual replica assignments, as CreateTopics, CreatePartitions and AlterPartitionReassignments carry them.

Of the replicas of a partition the first is the broker that is to lead it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

import trio

from kafscale.api.handling.new_topics import catch_up_if_any
from kafscale.api.handling.services import Services
from kafscale.cluster.membership.mover import Mover
from kafscale.cluster.registries.topics import Topic
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_REPLICA_ASSIGNMENT

logger = logging.getLogger(__name__)


async def know_brokers(services: Services, assignments: Iterable[Sequence[int]]) -> None:
    """Catch up with the other brokers if one is among these that is not known here: it may have joined a moment ago."""
    known = {node.node_id for node in services.assignment.brokers()}
    await catch_up_if_any(services, (not known.issuperset(broker_ids) for broker_ids in assignments))


async def lead_as_assigned(services: Services, topic: Topic, assigned: Mapping[int, Sequence[int]]) -> None:
    """Have new partitions of a topic led by the brokers that were asked for. Where that can't be, it is logged."""
    if services.mover is None:
        return
    async with trio.open_nursery() as nursery:  # those of one topic share a commit
        for index, replicas in assigned.items():
            nursery.start_soon(_lead_as_assigned, services.mover, topic, index, replicas)


async def _lead_as_assigned(mover: Mover, topic: Topic, index: int, replicas: Sequence[int]) -> None:
    try:
        await mover.move(topic, index, replicas)
    except KafkaError as exc:
        logger.warning("%s-%d is not led by broker %d, as was asked for: %s", topic.name, index, replicas[0], exc)


def check_assignment(broker_ids: Sequence[int], node_ids: Collection[int], replication_factor: int) -> None:
    """The replicas of one partition, of these brokers. Raises KafkaError INVALID_REPLICA_ASSIGNMENT."""
    check_brokers(broker_ids, node_ids)
    if len(broker_ids) != replication_factor:
        raise KafkaError(
            INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes a partition with {len(broker_ids)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s).",
        )


def check_brokers(broker_ids: Sequence[int], node_ids: Collection[int]) -> None:
    """There are replicas, all of these brokers. Raises KafkaError INVALID_REPLICA_ASSIGNMENT."""
    if not broker_ids:
        raise KafkaError(INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment includes an empty replica list.")
    for broker_id in broker_ids:
        if broker_id not in node_ids:
            raise KafkaError(
                INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered.",
            )
