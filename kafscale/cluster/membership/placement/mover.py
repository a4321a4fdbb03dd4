"""Moves of partitions that an operator asks for: a target is named, and the leader hands over when it sees that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import attrs

from kafscale.cluster.membership.placement.writer import Change, PlacementWriter
from kafscale.cluster.membership.records import Placement
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.registries.topic_index import Topic
from kafscale.errors import KafkaError, StoreError
from kafscale.wire.error_codes import REQUEST_TIMED_OUT, UNKNOWN_TOPIC_OR_PARTITION


class Mover(Protocol):
    """Moves partitions to other brokers.

    `move`, `stay` and `release` return when the change is committed; the hand-over follows. They raise KafkaError
    REQUEST_TIMED_OUT if the leader changes meanwhile or the store is away.
    """

    async def move(self, topic: Topic, index: int, replicas: Sequence[int]) -> None:
        """Assign a partition to brokers; the first is to lead it whenever it can. Replaces an earlier assignment."""

    async def stay(self, topic: Topic, index: int) -> None:
        """Cancel the move of a partition, and assign it to its present leader."""

    async def release(self, topic: Topic, index: int) -> None:
        """Remove the assignment of a partition, so that balance chooses its leader."""

    def assigned(self, topic: Topic) -> Mapping[int, Sequence[int]]:
        """Return the assigned partitions of a topic, each with its brokers."""

    def targets(self, topic: Topic) -> Mapping[int, int]:
        """Return the partitions of a topic that are on their way to another broker, each with that broker."""

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Return when `is_so` returns True; it is called again whenever brokers or placements change."""


class NoMover:
    """The mover of a lone broker: every partition is where it can be."""

    async def move(self, topic: Topic, index: int, replicas: Sequence[int]) -> None:
        pass

    async def stay(self, topic: Topic, index: int) -> None:
        pass

    async def release(self, topic: Topic, index: int) -> None:
        pass

    def assigned(self, topic: Topic) -> Mapping[int, Sequence[int]]:
        return {}

    def targets(self, topic: Topic) -> Mapping[int, int]:
        return {}

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        assert is_so(), "nothing changes who leads the partitions of a lone broker"


@attrs.frozen(eq=False, repr=False)
class PlacementMover:
    """The mover of several brokers. Its decisions are placements, so that they hold on every broker."""

    state: ClusterState
    writer: PlacementWriter

    async def move(self, topic: Topic, index: int, replicas: Sequence[int]) -> None:
        def assign(current: Placement, _number: int) -> Placement:
            target = None if current.leader == replicas[0] else replicas[0]
            return attrs.evolve(current, target=target, replicas=tuple(replicas))

        await self._change(topic, index, assign)

    async def stay(self, topic: Topic, index: int) -> None:
        def keep(current: Placement, _number: int) -> Placement:
            return attrs.evolve(current, target=None, replicas=(current.leader,) * topic.replication_factor)

        await self._change(topic, index, keep)

    async def release(self, topic: Topic, index: int) -> None:
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
        await self.state.wait_until(is_so)

    def targets(self, topic: Topic) -> Mapping[int, int]:
        row = self.state.placements.get(topic.topic_id, ())
        return {index: placement.target for index, placement in enumerate(row) if placement.target is not None}

    def assigned(self, topic: Topic) -> Mapping[int, Sequence[int]]:
        row = self.state.placements.get(topic.topic_id, ())
        return {index: placement.replicas for index, placement in enumerate(row) if placement.replicas}
