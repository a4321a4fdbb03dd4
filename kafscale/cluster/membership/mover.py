"""What the APIs ask of whoever moves partitions from broker to broker. One broker alone has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from kafscale.cluster.registries.topic_index import Topic


class Mover(Protocol):
    """Has partitions led by other brokers."""

    async def move(self, topic: Topic, index: int, replicas: Sequence[int]) -> None:
        """Assign a partition to brokers, the first of which is to lead it whenever it can.

        Returns when this is decided, though it may take time to come about. What was decided for the partition before
        is given up. Raises KafkaError if it can't be moved there.
        """

    async def stay(self, topic: Topic, index: int) -> None:
        """Have a partition that is on its way led where it is. Raises KafkaError if that can't be."""

    async def release(self, topic: Topic, index: int) -> None:
        """Assign a partition to nobody any more: any broker may lead it. Raises KafkaError if that can't be."""

    def assigned(self, topic: Topic) -> Mapping[int, Sequence[int]]:
        """Return the partitions of a topic that are assigned to brokers, and to which."""

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Return when a function says so that looks at who leads what; it is called again whenever that changes."""

    def targets(self, topic: Topic) -> Mapping[int, int]:
        """Return the partitions of a topic that are on their way to another broker, and which that is."""
