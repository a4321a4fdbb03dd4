"""Moves of partitions that somebody asks for: a target is named, and the leader hands over when it sees that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from kafscale.cluster.membership.placement.writer import Change, PlacementWriter
from kafscale.cluster.membership.records import Placement
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.registries.topic_index import Topic
from kafscale.errors import KafkaError, StoreError
from kafscale.wire.error_codes import REQUEST_TIMED_OUT, UNKNOWN_TOPIC_OR_PARTITION


@attrs.frozen(eq=False, repr=False)
class ClusterMover:
    """The `Mover` of several brokers. What was decided is in the placements, so that it holds on every broker."""

    state: ClusterState
    writer: PlacementWriter

    async def move(self, topic: Topic, index: int, replicas: Sequence[int]) -> None:
        """Name a target, and note who it is assigned to.

        Raises KafkaError REQUEST_TIMED_OUT if the leader changes meanwhile, or the store is away.
        """

        def assign(current: Placement, _number: int) -> Placement:
            target = None if current.leader == replicas[0] else replicas[0]
            return attrs.evolve(current, target=target, replicas=tuple(replicas))

        await self._change(topic, index, assign)

    async def stay(self, topic: Topic, index: int) -> None:
        """Have a partition led where it is, and assigned to there. Raises KafkaError as `move`."""

        def keep(current: Placement, _number: int) -> Placement:
            return attrs.evolve(current, target=None, replicas=(current.leader,) * topic.replication_factor)

        await self._change(topic, index, keep)

    async def release(self, topic: Topic, index: int) -> None:
        """Let balance choose who leads a partition. Raises KafkaError as `move`."""
        await self._change(topic, index, lambda current, _number: attrs.evolve(current, replicas=()))

    async def _change(self, topic: Topic, index: int, change: Change) -> None:
        placement = self.state.placement(topic.topic_id, index)
        if placement is None:
            raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION)
        if change(placement, 0) == placement:
            return
        try:
            is_made = await self.writer.change(topic.topic_id, index, placement.epoch, change)
        except StoreError as exc:
            raise KafkaError(REQUEST_TIMED_OUT, f"The metadata can't be changed just now, try again: {exc}") from exc
        if not is_made:
            raise KafkaError(REQUEST_TIMED_OUT, f"{topic.name}-{index} has got another leader meanwhile: try again.")

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Return when a function says so that looks at who leads what; it is called again whenever that changes."""
        await self.state.wait_until(is_so)

    def targets(self, topic: Topic) -> Mapping[int, int]:
        """Return who is to lead the partitions that are on their way."""
        row = self.state.placements.get(topic.topic_id, ())
        return {index: each.target for index, each in enumerate(row) if each.target is not None}

    def assigned(self, topic: Topic) -> Mapping[int, Sequence[int]]:
        """Return whom partitions are assigned to, where somebody has assigned them."""
        row = self.state.placements.get(topic.topic_id, ())
        return {index: each.replicas for index, each in enumerate(row) if each.replicas}
