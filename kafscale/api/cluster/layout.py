"""Where a topic's partitions are, as Metadata and DescribeTopicPartitions tell clients."""

from __future__ import annotations

import attrs

from kafscale.cluster.membership.assignment import Assignment, Leader
from kafscale.cluster.registries.topics import Topic

NOBODY = -1


@attrs.frozen(kw_only=True)
class Layout:
    """All that the partitions of a topic depend on, so that topics share them.

    `leaders` are as of the assignment, and `waiting` which broker each partition waits for, or NOBODY; empty where all
    are led. Who is not among the `brokers` that the client can connect to leads nothing, as far as it is told.
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
            waiting=tuple(waiting.get(index, NOBODY) for index in range(topic.partition_count)) if waiting else (),
        )

    def leader(self, index: int) -> Leader | None:
        """Return who leads a partition; None if nobody does just now."""
        leader = self.leaders[index if len(self.leaders) > 1 else 0]
        return leader if leader is not None and leader.node_id in self.brokers else None

    def offline(self, index: int) -> list[int]:
        """Return the replicas of a partition that nobody leads: the broker that it waits for, if it is known."""
        broker_id = self.waiting[index] if self.waiting else NOBODY
        return [] if broker_id == NOBODY else [broker_id] * self.replication_factor

    def replicas(self, leader: Leader) -> list[int]:
        """Return the broker ids of a partition's replicas: those that it is assigned to.

        Where there are none, it is its leader's, as often as the replication factor says.
        """
        return list(leader.replicas) or [leader.node_id] * self.replication_factor
