"""Moves of partitions that somebody asks for: a target is named, and the leader hands over when it sees that."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kafscale.cluster.brokers.placements import PlacementWriter
from kafscale.cluster.brokers.records import Placement
from kafscale.cluster.brokers.state import ClusterState
from kafscale.cluster.topics.index import Topic
from kafscale.errors import KafkaError, StoreError
from kafscale.wire.error_codes import REQUEST_TIMED_OUT, UNKNOWN_TOPIC_OR_PARTITION


@attrs.frozen(eq=False, repr=False)
class ClusterMover:
    """The `Mover` of several brokers."""

    state: ClusterState
    writer: PlacementWriter

    async def move(self, topic: Topic, index: int, target: int) -> None:
        """Name a target. Raises KafkaError REQUEST_TIMED_OUT if the leader changes meanwhile, or the store is away."""
        placement = self.state.placement(topic.topic_id, index)
        if placement is None:
            raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION)

        def with_target(current: Placement, _number: int) -> Placement:
            return attrs.evolve(current, target=None if current.leader == target else target)

        try:
            is_named = await self.writer.change(topic.topic_id, index, placement.epoch, with_target)
        except StoreError as exc:
            raise KafkaError(REQUEST_TIMED_OUT, f"The metadata can't be changed just now: {exc}") from exc
        if not is_named:
            raise KafkaError(REQUEST_TIMED_OUT, f"{topic.name}-{index} has got another leader meanwhile: try again.")

    def targets(self, topic: Topic) -> Mapping[int, int]:
        """Return who is to lead the partitions that are on their way."""
        row = self.state.placements.get(topic.topic_id, ())
        return {index: each.target for index, each in enumerate(row) if each.target is not None}
