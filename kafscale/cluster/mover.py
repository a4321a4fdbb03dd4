"""What the APIs ask of whoever moves partitions from broker to broker. One broker alone has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kafscale.cluster.topics.index import Topic


class Mover(Protocol):
    """Has partitions led by other brokers."""

    async def move(self, topic: Topic, index: int, target: int) -> None:
        """Have that broker lead a partition; return when this is decided, though it may take time to come about.

        What was decided for the partition before is given up. If it is led there already, nothing else happens. Raises
        KafkaError if it can't be moved there.
        """

    def targets(self, topic: Topic) -> Mapping[int, int]:
        """Return the partitions of a topic that are on their way to another broker, and which that is."""
