"""The recreated topic, and the group member that reads it, as a part of the clients."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from kafscale.errors import BrokerUnavailable
from tests.devtools.world.recreator import ClusterRecreator
from tests.devtools.world.visitor import Visitor
from tests.devtools.world.workload import Topic

RETRY_SECONDS = 0.1


@attrs.define(eq=False)
class TemporaryTopic:
    """A `tests.devtools.world.world.Part`."""

    recreator: ClusterRecreator
    visitor: Visitor

    @property
    def all_topics(self) -> Sequence[Topic]:
        return self.recreator.topics[-1:]

    async def create_topics(self) -> None:
        await trio.lowlevel.checkpoint()

    def start_readers(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self.visitor.run)

    def start_writers(self, nursery: trio.Nursery, stopping: trio.Event) -> None:
        assert stopping is self.recreator.stopping
        nursery.start_soon(self.recreator.run)

    async def wait_settled(self, name: str) -> None:
        """Wait until the member has read all."""
        await self.visitor.wait_settled()

    async def read_back(self, name: str) -> None:
        """Read the current topic. Raises KafkaError."""
        while True:
            try:
                await self.recreator.read_to_end(name)
                return
            except BrokerUnavailable:
                for topic in self.all_topics:
                    for index in range(topic.partition_count):
                        self.recreator.history.sought(name, topic.partition_name(index))
                await trio.sleep(RETRY_SECONDS)

    def problems(self) -> Sequence[str]:
        return [*self.recreator.faults, *self.visitor.faults]
